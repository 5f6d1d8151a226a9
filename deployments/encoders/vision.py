"""The vision encoder's deployment."""

from ray import serve

from deployments.encoders.shell import DEPLOYMENT, EncoderShell


@serve.deployment(name="VisionEncoder", **DEPLOYMENT)
class VisionEncoder(EncoderShell):
    """Runs the family's vision encoder."""

    encoder = "vision"
