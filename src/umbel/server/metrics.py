"""Prometheus metrics: vLLM's names for what routers read, `umbel_*` for the rest.

Histograms are observed as requests go by; everything the engine counts itself is read from its
snapshot when somebody scrapes.
"""

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from umbel.runtime.engine import Engine
from umbel.server.record import RequestRecord

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
_TOKEN_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)


class ServerMetrics:
    """The metrics of one server, in a registry of its own."""

    def __init__(self, engine: Engine, model_name: str) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(_EngineCollector(engine, model_name))
        self.answers = Counter(
            "umbel_http_answers", "HTTP answers", ["path", "status"], registry=self._registry
        )
        self.finished = Counter(
            "umbel_finished_sequences", "Sequences that ended", ["reason"], registry=self._registry
        )
        self.write_timeouts = Counter(
            "umbel_write_timeouts", "Connections whose client read nothing", registry=self._registry
        )
        self.first_token_s = self._histogram(
            "umbel_time_to_first_token_seconds", "From request to first output", _SECONDS
        )
        self.inter_token_s = self._histogram(
            "umbel_inter_token_latency_seconds", "Between two outputs of one sequence",
            _TOKEN_SECONDS,
        )  # fmt: skip
        self.request_s = self._histogram(
            "umbel_request_seconds", "From request to the end of its answer", _SECONDS
        )
        self.known_paths: frozenset[str] = frozenset()  # set by the app: bounds the labels

    def count_answer(self, record: RequestRecord) -> None:
        path = record.path if record.path in self.known_paths else "other"
        self.answers.labels(path, str(record.status)).inc()

    def render(self) -> bytes:
        """The text that Prometheus scrapes."""
        return generate_latest(self._registry)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(name, text, buckets=buckets, registry=self._registry)


class _EngineCollector(Collector):
    """Reads the engine's counts."""

    def __init__(self, engine: Engine, model_name: str) -> None:
        self._engine = engine
        self._model_name = model_name

    def collect(self) -> Iterator[Metric]:
        yield from self._for_routers()
        yield from self._counts()
        yield from self._cache()
        yield from self._steps()
        yield from self._roofline()
        yield from self._grammars()

    def _for_routers(self) -> Iterator[Metric]:
        stats, cache = self._engine.stats(), self._engine.stats().cache
        yield self._gauge("vllm:num_requests_waiting", "Waiting requests", stats.num_waiting)
        yield self._gauge("vllm:num_requests_running", "Running requests", stats.num_running)
        used = cache.num_leased_blocks / cache.num_blocks
        yield self._gauge("vllm:kv_cache_usage_perc", "Share of KV in use, 0 to 1", used)
        config = self._engine.config
        info = GaugeMetricFamily(
            "vllm:cache_config_info",
            "Configuration of the cache",
            labels=["block_size", "num_gpu_blocks", "enable_prefix_caching", "cache_dtype"],
        )
        labels = [config.block_size, cache.num_blocks, config.prefix_cache, config.dtype]
        info.add_metric([str(label) for label in labels], 1)
        yield info

    def _counts(self) -> Iterator[Metric]:
        stats = self._engine.stats()
        yield self._gauge("umbel_queue_requests", "Requests that wait", stats.num_waiting)
        yield self._gauge("umbel_running_requests", "Requests that hold KV", stats.num_running)
        counts = {
            "umbel_requests": ("Sequences submitted", stats.num_requests),
            "umbel_computed_tokens": ("Rows fed to the model", stats.num_computed_tokens),
            "umbel_reused_tokens": ("Context found in the cache", stats.num_reused_tokens),
            "umbel_generated_tokens": ("Output, forced included", stats.num_generated_tokens),
            "umbel_forced_tokens": ("Output given by constraints", stats.num_forced_tokens),
            "umbel_drafted_tokens": ("Guessed ahead and fed", stats.num_drafted_tokens),
            "umbel_confirmed_tokens": ("Of these, right ones", stats.num_confirmed_tokens),
            "vllm:spec_decode_num_draft_tokens": ("Guessed", stats.num_drafted_tokens),
            "vllm:spec_decode_num_accepted_tokens": ("Right ones", stats.num_confirmed_tokens),
            "umbel_preemptions": ("Requests that started over", stats.num_preemptions),
            "umbel_steps": ("Steps of the engine", stats.num_steps),
            "umbel_failed_steps": ("Steps that failed", stats.num_failed_steps),
        }
        for name, (text, value) in counts.items():
            yield CounterMetricFamily(name, text, value=value)

    def _cache(self) -> Iterator[Metric]:
        cache = self._engine.stats().cache
        blocks = GaugeMetricFamily("umbel_cache_blocks", "Blocks of KV by state", labels=["state"])
        blocks.add_metric(["free"], cache.num_free_blocks)
        blocks.add_metric(["leased"], cache.num_leased_blocks)
        blocks.add_metric(["cached"], cache.num_cached_blocks)
        yield blocks
        yield CounterMetricFamily(
            "umbel_cache_hit_tokens", "Tokens found in the tree", value=cache.total_hit_tokens
        )
        yield CounterMetricFamily(
            "umbel_cache_evicted_blocks", "Blocks evicted", value=cache.total_evicted_blocks
        )
        yield CounterMetricFamily(
            "umbel_cache_copied_blocks", "Blocks copied on write", value=cache.total_copies
        )
        yield self._gauge("umbel_cache_pins", "Prefixes kept for programs", cache.num_pins)
        yield CounterMetricFamily(
            "umbel_cache_dropped_pins", "Of these, given up", value=cache.total_dropped_pins
        )

    def _steps(self) -> Iterator[Metric]:
        stats = self._engine.stats()
        rows = CounterMetricFamily(
            "umbel_steps_by_rows", "Steps by rows, rounded up to a power of two", labels=["rows"]
        )
        for num_rows, num_steps in stats.rows_per_step.items():
            rows.add_metric([str(num_rows)], num_steps)
        yield rows
        yield self._gauge("umbel_rows_per_step_mean", "Rows per step", stats.mean_rows_per_step)
        seconds = CounterMetricFamily(
            "umbel_step_seconds", "Time of steps by phase", labels=["phase"]
        )
        for phase in ("plan", "forward", "sample", "commit"):
            seconds.add_metric([phase], getattr(stats.all_steps, f"{phase}_s"))
        yield seconds

    def _roofline(self) -> Iterator[Metric]:
        """The last steps against the device's limits: see docs/roofline.md."""
        reading = self._engine.gauge().recent
        if reading is None:
            return
        yield self._gauge(
            "umbel_bandwidth_share", "Bytes that had to move, of the limit", reading.bandwidth_share
        )
        yield self._gauge(
            "umbel_flops_share", "Arithmetic that had to be done, of the limit", reading.flops_share
        )
        split = reading.split
        parts = GaugeMetricFamily(
            "umbel_step_time_share", "Where the time of the last steps went", labels=["part"]
        )
        for part, seconds in {
            "weights": split.weights_s,
            "kv": split.kv_s,
            "compute": split.compute_s,
            "overhead": split.unexplained_s,
            "host": split.host_s,
        }.items():
            parts.add_metric([part], seconds / split.total_s)
        yield parts
        binding = GaugeMetricFamily("umbel_binding", "What binds the last steps", labels=["by"])
        binding.add_metric([reading.binding], 1)
        yield binding

    def _grammars(self) -> Iterator[Metric]:
        stats = self._engine.compiler_stats()
        yield CounterMetricFamily(
            "umbel_grammar_compilations", "Grammars compiled", value=stats.num_compiled
        )
        yield CounterMetricFamily(
            "umbel_grammar_compile_seconds", "Time spent compiling grammars", value=stats.compile_s
        )
        yield CounterMetricFamily(
            "umbel_grammar_cache_hits", "Grammars that were there", value=stats.num_hits
        )
        yield GaugeMetricFamily(
            "umbel_grammars_cached", "Compiled grammars kept", value=stats.num_cached
        )

    def _gauge(self, name: str, text: str, value: float) -> GaugeMetricFamily:
        family = GaugeMetricFamily(name, text, labels=["model_name"])
        family.add_metric([self._model_name], value)
        return family
