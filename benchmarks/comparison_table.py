"""The table that `benchmarks/compare.py` prints, with what each workload should reach."""

from collections.abc import Mapping
from typing import Any

import workloads

ENGINES = ("umbel", "vllm", "llama.cpp")
Record = dict[str, Any]

# workload -> peer -> (floor, aim): our rate over the peer's.
TARGETS: Mapping[str, Mapping[str, tuple[float, float]]] = {
    "decode_b1": {"vllm": (1.5, 2.2), "llama.cpp": (0.7, 1.0)},
    "decode_b4": {"vllm": (1.05, 1.4)},
    "decode_b16": {"vllm": (1.05, 1.5), "llama.cpp": (2.1, 3.0)},
    "decode_b64": {"vllm": (1.1, 1.6), "llama.cpp": (3.2, 4.7)},
    "prefill_1024": {"vllm": (1.25, 2.0)},
    "prefill_4096": {"vllm": (1.1, 1.6)},
    "prefix2048_b16_cold": {"vllm": (1.4, 2.2)},
    "prefix2048_b16_warm": {"vllm": (1.7, 2.6)},
    "prefix2048_b64_cold": {"vllm": (1.7, 2.8)},
    "prefix2048_b64_warm": {"vllm": (1.9, 3.2)},
    "json_constrained": {"vllm": (1.2, 2.0)},
    "json_constrained_b1": {"vllm": (1.7, 3.5)},
    "http_c16": {"vllm": (1.1, 1.6)},
    "agent_http": {"vllm": (1.3, 2.0)},
    "agent_program": {"vllm": (1.7, 4.0)},
}
# What a peer has no form of its own for is compared with its nearest one.
INSTEAD = {"agent_program": "agent_http"}


def format_table(records: list[Record], limits: Mapping[str, float]) -> str:
    """Rates by workload, ours over each peer's (floor/aim), and our share of the limit."""
    found = {(record["engine"], record["workload"]): record for record in records}
    engines = [engine for engine in ENGINES if any(engine == key[0] for key in found)]
    peers = [engine for engine in engines if engine != "umbel"]
    lines = ["limits: " + ", ".join(f"{name} {value:.0f}" for name, value in limits.items())]
    heads = [f"{engine} tok/s" for engine in engines] + [f"x {peer} (floor/aim)" for peer in peers]
    lines.append(f"{'workload':20}" + "".join(f"{h:>23}" for h in [*heads, "at limit, by"]))
    for name in workloads.NAMES:
        if not any((engine, name) in found for engine in engines):
            continue
        cells = [_rate(found.get((engine, name))) for engine in engines]
        cells += [_ratio(found, name, peer) for peer in peers]
        cells.append(_limit(found.get(("umbel", name))))
        lines.append(f"{name:20}" + "".join(f"{cell:>23}" for cell in cells))
    lines += _constrained_cost(found, engines)
    for engine in engines:
        lines += _streaming(found, engine)
    for engine in engines:
        own = [record for record in records if record["engine"] == engine]
        start_s = min(record["start_s"] for record in own)
        peak_mb = max(record["peak_rss_mb"] for record in own)
        target = " (floor/aim 8/4 s, 1500/1000 MB)" if engine == "umbel" else ""
        lines.append(f"{engine}: first token {start_s:.1f} s, peak {peak_mb:.0f} MB{target}")
    return "\n".join(lines)


def _rate(record: Record | None) -> str:
    return "-" if record is None else f"{record['tok_s']:.1f}"


def _ratio(found: Mapping[tuple[str, str], Record], name: str, peer: str) -> str:
    ours, theirs = found.get(("umbel", name)), found.get((peer, name))
    if theirs is None and name in INSTEAD:
        theirs = found.get((peer, INSTEAD[name]))
    if ours is None or theirs is None:
        return "-"
    ratio = ours["tok_s"] / theirs["tok_s"]
    target = TARGETS.get(name, {}).get(peer)
    return f"{ratio:.2f}" if target is None else f"{ratio:.2f} ({target[0]:g}/{target[1]:g})"


def _limit(record: Record | None) -> str:
    if record is None or "limit_share" not in record:
        return "-"
    return f"{100 * record['limit_share']:.0f}%, {record['limited_by']}"


def _constrained_cost(found: Mapping[tuple[str, str], Record], engines: list[str]) -> list[str]:
    """Time of constrained answers over that of as many free tokens; the goal is at most 1.03."""
    names = ("json_constrained", "json_unconstrained")
    return [
        f"{engine}: constrained / same tokens unconstrained, time "
        f"{found[engine, names[0]]['wall_s'] / found[engine, names[1]]['wall_s']:.2f}"
        for engine in engines
        if all((engine, name) in found for name in names)
    ]


def _streaming(found: Mapping[tuple[str, str], Record], engine: str) -> list[str]:
    lines = []
    for name in ("http_c1", "http_c16"):
        record = found.get((engine, name))
        if record is not None:
            first, gap = 1000 * record["ttft_p50_s"], 1000 * record["inter_token_p50_s"]
            lines.append(
                f"{engine} {name}: first token p50 {first:.0f} ms, between tokens p50 {gap:.1f} ms"
            )
    return lines
