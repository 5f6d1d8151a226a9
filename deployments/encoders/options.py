"""What an encoder deployment is told: Serve's options of all of them, and a replica's own."""

from dataclasses import dataclass
from typing import Any

from deployments.encoders.preprocess_pool import PoolOptions
from deployments.upstream.encoder_model import EncoderModelSpec

DEPLOYMENT: dict[str, Any] = {
    "health_check_period_s": 1,
    "health_check_timeout_s": 120,
    "max_ongoing_requests": 64,
    "max_queued_requests": 128,  # per Ingress, beyond those that the replicas have in hand
    "graceful_shutdown_timeout_s": 20,
    "ray_actor_options": {"num_cpus": 0},
}
"""Serve's options of every encoder deployment, before the config's own overrides."""


@dataclass(frozen=True)
class EncoderOptions:
    """What an encoder replica is told, whichever encoder it is."""

    spec: EncoderModelSpec
    pool: PoolOptions
    graphs: Any  # policies.graph_options: GraphOptions or BudgetOptions
    max_batch_size: int = 8
    batch_wait_s: float = 0.004  # longest wait for company, and only in a queue
    max_batch_s: float = 0.03  # longest batch of several items, by what they took before
    stuck_after_s: float = 30.0
    controller_timeout_s: float = 3.0
    drain_s: float = 15.0  # longest wait for work in hand before a recycled replica exits
