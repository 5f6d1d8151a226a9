"""The vision encoder's deployment."""

from ray import serve

from deployments.encoders.options import DEPLOYMENT
from deployments.encoders.shell import EncoderShell


@serve.deployment(name="VisionEncoder", **DEPLOYMENT)
class VisionEncoder(EncoderShell):
    """Runs the family's vision encoder."""

    encoder = "vision"
