"""What binds a step, in words, and what would help: for the planner's report and for the gauge."""

BINDS = {
    "weights": "reading the weights",
    "kv": "reading keys and values",
    "compute": "arithmetic",
    "collectives": "exchange between devices",
    "overhead": "what the device's limits do not explain: launches, activations, imperfect kernels",
    "host": "the host: scheduling, sampling and handing out answers",
}

HELPS = {
    "weights": "more rows per step (they are nearly free), speculation, narrower weights",
    "kv": "sharing prefixes, a narrower KV dtype, shorter contexts",
    "compute": "a dtype with faster arithmetic, caching prompts, more devices",
    "collectives": "a narrower tensor-parallel width, more rows per step",
    "overhead": "more rows per step, fewer kernels per layer, captured graphs",
    "host": "fewer calls with more tokens each, a larger model or more rows to hide it behind",
}


def advice(binding: str) -> str:
    """One sentence for the `binding` of a `StepBound` or a `TimeSplit`: "weights", "kv", "compute",
    "collectives", "overhead", "host".
    """
    return f"bound by {BINDS[binding]}; what helps: {HELPS[binding]}"
