"""vLLM's own engine metrics by way of Ray, so that one scrape of a node has them too."""

from typing import Any


class _Silent:
    """A histogram that nobody asked for."""

    def observe(self, value: float) -> None:
        """Forget it."""


def engine_metrics() -> type:
    """The stat logger for an engine's ``stat_loggers``: upstream's for Ray, less what it does for each token.

    Ray's agent rebuilds histograms value by value, so the gap between tokens, one value a token, would
    cost more than it tells; the mean gap of each request is kept.
    """
    from vllm.v1.metrics.ray_wrappers import RayPrometheusStatLogger

    class EngineMetrics(RayPrometheusStatLogger):
        def __init__(self, vllm_config: Any, engine_indexes: list[int] | None = None) -> None:
            super().__init__(vllm_config, engine_indexes)
            self.histogram_inter_token_latency = dict.fromkeys(self.engine_indexes, _Silent())

    return EngineMetrics
