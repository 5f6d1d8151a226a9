"""Serve's autoscaling of an encoder deployment by the encoder's own queue; the thinking is in policies.

Use in a deployment's options or in the config::

    autoscaling_config:
      min_replicas: 1
      max_replicas: 4
      upscale_delay_s: 3
      downscale_delay_s: 60
      policy:
        policy_function: deployments.autoscaling:QueuedWorkScaling
        policy_kwargs: {target_s: 0.5, up_above_s: 1.0}  # marks of policies.autoscaling.ScalingPolicy
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ray import cloudpickle

import policies.autoscaling
from policies.autoscaling import EncoderLoad, ScalingPolicy, desired_replicas

if TYPE_CHECKING:
    from ray.serve.config import AutoscalingContext

# The policy runs in Serve's controller, which may not have this project on its path: Serve sends this
# module by value, and what it imports from us must go the same way.
cloudpickle.register_pickle_by_value(policies.autoscaling)


class QueuedWorkScaling:
    """A policy for ``AutoscalingPolicy(policy_function=...)``, made once in Serve's controller.

    Reads what ``record_autoscaling_stats`` of every replica says: ``queued_s``, the work in hand in seconds
    at the pace that the replica measured itself, and ``pending_items``, of which one or more is a busy
    replica.
    """

    def __init__(self, **marks: float) -> None:
        self.policy = ScalingPolicy(**marks)

    def __call__(self, ctx: "AutoscalingContext") -> tuple[int, dict[str, Any]]:
        """The wished number within the deployment's bounds; no state is kept between calls."""
        load = encoder_load(ctx.aggregated_metrics or {})
        wished = desired_replicas(load, ctx.target_num_replicas, self.policy)
        low, high = ctx.capacity_adjusted_min_replicas, ctx.capacity_adjusted_max_replicas
        return min(max(wished, low), high), {}


def encoder_load(metrics: Mapping[str, Mapping[Any, float]]) -> EncoderLoad:
    """The load that replicas report, by metric and replica."""
    queued = metrics.get("queued_s", {})
    pending = metrics.get("pending_items", {})
    return EncoderLoad(
        reporting=len(queued),
        queued_s=sum(queued.values()),
        busy=sum(min(1.0, items) for items in pending.values()),
    )
