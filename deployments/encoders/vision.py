"""The vision encoder's deployment."""

from ray import serve

from deployments.encoders.shell import EncoderShell


@serve.deployment(
    name="VisionEncoder",
    health_check_period_s=1,
    health_check_timeout_s=120,
    max_ongoing_requests=64,
    graceful_shutdown_timeout_s=20,
    ray_actor_options={"num_cpus": 0},
    logging_config={"enable_access_log": False},
)
class VisionEncoder(EncoderShell):
    """Runs the family's vision encoder."""

    encoder = "vision"
