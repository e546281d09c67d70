"""What one viewer sees of a sample: bounded in size, and of other tenants only their numbers."""

import time
from collections import defaultdict
from collections.abc import Sequence
from typing import Literal

import msgspec

from umbel.radix_cache.tree import NodeView, TokenKind
from umbel.runtime.tokenizer import Tokenizer
from umbel.server.dashboard_sample import Moment, Quantiles, Sample, hit_rate
from umbel.server.trace import Trace, Track

MAX_NODES = 120
MAX_REQUESTS = 24  # that run; and as many again that ended, fewer
MAX_ENDED = 8
MAX_TRACKS = 96  # of all requests together
MAX_TEXT_CHARS = 240
_NODE_TOKENS = 24  # whose text is shown


class Counts(msgspec.Struct, kw_only=True):
    """Since the start. Tokens, unless the name says otherwise."""

    requests: int
    waiting_requests: int
    running_requests: int
    steps: int
    failed_steps: int
    generated: int
    computed: int
    reused: int
    forced: int
    preemptions: int


class CacheView(msgspec.Struct, kw_only=True):
    total_blocks: int
    free_blocks: int
    leased_blocks: int
    cached_blocks: int
    block_size: int
    nodes: int
    evicted_blocks: int
    copies: int
    hit_rate: float | None  # since the start


class GaugeView(msgspec.Struct, kw_only=True):
    """The steps since the last sample against the device's limits: shares of their time."""

    bandwidth: float
    flops: float
    weights: float
    kv: float
    compute: float
    overhead: float
    host: float
    binding: str
    advice: str


class NodeRow(msgspec.Struct, kw_only=True):
    """One node of the tree. `readers`: leases that end in it or below; `requests`: whose of those
    are shown.
    """

    id: int
    parent: int | None
    start: int
    tokens: int
    blocks: int
    kind: Literal["root", "prompt", "output"]
    readers: int
    requests: list[str]
    text: str
    hidden: int  # children that are left out


class TrackRow(msgspec.Struct, kw_only=True):
    name: str
    kind: str
    parent: int | None  # the track that it goes on from
    state: Literal["queued", "decoding", "done"]
    outcome: str | None
    prompt_tokens: int
    cached_tokens: int | None
    output_tokens: int
    text: str


class RequestRow(msgspec.Struct, kw_only=True):
    id: str
    name: str
    seconds: float
    is_running: bool
    tracks: list[TrackRow]
    hidden: int  # tracks that are left out


class DashboardData(msgspec.Struct, kw_only=True):
    """All that the page draws."""

    model: str
    device: str
    time: float
    is_draining: bool
    counts: Counts
    cache: CacheView
    gauge: GaugeView | None
    first_token_s: Quantiles
    inter_token_s: Quantiles
    steps: list[tuple[int, float]]  # rows and milliseconds of the newest steps
    history: list[Moment]
    tree: list[NodeRow]
    hidden_nodes: int
    requests: list[RequestRow]
    hidden_requests: int


def make_view(
    sample: Sample,
    tokenizer: Tokenizer,
    *,
    model: str,
    block_size: int,
    tenant: str | None,
    is_draining: bool,
) -> DashboardData:
    """What `tenant` sees; None sees what has no tenant, as there are no keys then."""
    stats, cache = sample.stats, sample.stats.cache
    shown, num_hidden = _shown([trace for trace in sample.traces if trace.tenant == tenant])
    nodes = [node for node in sample.nodes if _is_of(node, tenant)]
    tree = _tree(nodes, shown, tokenizer)
    return DashboardData(
        model=model,
        device=sample.device,
        time=time.time(),
        is_draining=is_draining,
        counts=Counts(
            requests=stats.num_requests,
            waiting_requests=stats.num_waiting,
            running_requests=stats.num_running,
            steps=stats.num_steps,
            failed_steps=stats.num_failed_steps,
            generated=stats.num_generated_tokens,
            computed=stats.num_computed_tokens,
            reused=stats.num_reused_tokens,
            forced=stats.num_forced_tokens,
            preemptions=stats.num_preemptions,
        ),
        cache=CacheView(
            total_blocks=cache.num_blocks,
            free_blocks=cache.num_free_blocks,
            leased_blocks=cache.num_leased_blocks,
            cached_blocks=cache.num_cached_blocks,
            block_size=block_size,
            nodes=cache.num_nodes,
            evicted_blocks=cache.total_evicted_blocks,
            copies=cache.total_copies,
            hit_rate=hit_rate(stats),
        ),
        gauge=_gauge(sample),
        first_token_s=sample.first_token,
        inter_token_s=sample.inter_token,
        steps=[(step.rows, round(step.times.total_s * 1e3, 3)) for step in stats.gauge.recent],
        history=sample.history,
        tree=tree,
        hidden_nodes=len(nodes) - len(tree),
        requests=_requests(shown),
        hidden_requests=num_hidden,
    )


def _is_of(node: NodeView, tenant: str | None) -> bool:
    """A tenant's namespaces: that of its key, and those with a salt."""
    owner = node.namespace.tenant
    if tenant is None:
        return owner is None or owner.startswith("|")
    return owner == tenant or (owner is not None and owner.startswith(f"{tenant}|"))


def _gauge(sample: Sample) -> GaugeView | None:
    reading = sample.reading
    if reading is None:
        return None
    split, total_s = reading.split, reading.split.total_s or 1.0
    return GaugeView(
        bandwidth=reading.bandwidth_share,
        flops=reading.flops_share,
        weights=split.weights_s / total_s,
        kv=split.kv_s / total_s,
        compute=split.compute_s / total_s,
        overhead=split.unexplained_s / total_s,
        host=split.host_s / total_s,
        binding=reading.binding,
        advice=reading.advice,
    )


def _shown(traces: Sequence[Trace]) -> tuple[list[Trace], int]:
    """The requests that are shown, and how many that run are not."""
    running = [trace for trace in traces if trace.ended_s is None]
    ended = [trace for trace in traces if trace.ended_s is not None]
    shown = running[:MAX_REQUESTS] + ended[:MAX_ENDED]
    return shown, max(0, len(running) - MAX_REQUESTS)


def _requests(traces: Sequence[Trace]) -> list[RequestRow]:
    now_s, num_left = time.perf_counter(), MAX_TRACKS
    rows = []
    for at, trace in enumerate(traces):
        tracks = list(trace.tracks)
        share = max(1, num_left // (len(traces) - at))
        num_left = max(0, num_left - min(share, len(tracks)))
        end_s = now_s if trace.ended_s is None else trace.ended_s
        rows.append(
            RequestRow(
                id=trace.trace_id,
                name=trace.name,
                seconds=round(end_s - trace.started_s, 3),
                is_running=trace.ended_s is None,
                tracks=[_track(track) for track in tracks[:share]],
                hidden=max(0, len(tracks) - share) + trace.num_left_out,
            )
        )
    return rows


def _track(track: Track) -> TrackRow:
    state: Literal["queued", "decoding", "done"] = "queued"
    if track.ended_s is not None:
        state = "done"
    elif track.first_token_s is not None:
        state = "decoding"
    return TrackRow(
        name=track.name,
        kind=track.kind,
        parent=track.parent,
        state=state,
        outcome=track.outcome,
        prompt_tokens=track.num_prompt,
        cached_tokens=track.num_cached,
        output_tokens=track.num_output,
        text=track.text[-MAX_TEXT_CHARS:],
    )


def _tree(
    nodes: Sequence[NodeView], traces: Sequence[Trace], tokenizer: Tokenizer
) -> list[NodeRow]:
    """The nodes with most readers, then most tokens: with each node its ancestors, which have at
    least as many of both and stand before it.
    """
    readers = {node.id: node.num_leases for node in nodes}
    tokens = {node.id: len(node.tokens) for node in nodes}
    num_children: defaultdict[int, int] = defaultdict(int)
    for node in reversed(nodes):  # parents stand before their children
        if node.parent is not None:
            readers[node.parent] += readers[node.id]
            tokens[node.parent] += tokens[node.id]
            num_children[node.parent] += 1
    chosen = sorted(nodes, key=lambda node: (-readers[node.id], -tokens[node.id]))[:MAX_NODES]
    for node in chosen:
        if node.parent is not None:
            num_children[node.parent] -= 1
    requests = _requests_by_node(chosen, traces)
    return [
        NodeRow(
            id=node.id,
            parent=node.parent,
            start=node.start,
            tokens=len(node.tokens),
            blocks=len(node.blocks),
            kind=_kind(node),
            readers=readers[node.id],
            requests=requests[node.id],
            text=tokenizer.decode(node.tokens[:_NODE_TOKENS], skip_special=False),
            hidden=num_children[node.id],
        )
        for node in chosen
    ]


def _kind(node: NodeView) -> Literal["root", "prompt", "output"]:
    if node.parent is None:
        return "root"
    return "prompt" if node.kind is TokenKind.PROMPT else "output"


def _requests_by_node(
    nodes: Sequence[NodeView], traces: Sequence[Trace]
) -> defaultdict[int, list[str]]:
    """Which running requests read which of the nodes: their tokens are followed down the tree."""
    children: defaultdict[int, list[NodeView]] = defaultdict(list)
    for node in nodes:
        if node.parent is not None:
            children[node.parent].append(node)
    roots = [node for node in nodes if node.parent is None]
    found: defaultdict[int, list[str]] = defaultdict(list)
    for trace in traces:
        for track in list(trace.tracks):
            if track.ended_s is None and trace.ended_s is None:
                path = [*track.prompt_ids, *track.output_ids]
                for root in roots:
                    _follow(path, root, children, found, trace.trace_id)
    return found


def _follow(
    path: Sequence[int],
    node: NodeView,
    children: defaultdict[int, list[NodeView]],
    found: defaultdict[int, list[str]],
    trace_id: str,
) -> None:
    at = 0
    while True:
        child = next(
            (c for c in children[node.id] if at < len(path) and c.tokens[0] == path[at]), None
        )
        if child is None:
            return
        stretch = path[at : at + len(child.tokens)]
        if child.tokens[: len(stretch)] != list(stretch):
            return
        if trace_id not in found[child.id]:
            found[child.id].append(trace_id)
        node, at = child, at + len(stretch)
