"""The audio encoder's deployment."""

from ray import serve

from deployments.encoders.options import DEPLOYMENT
from deployments.encoders.shell import EncoderShell


@serve.deployment(name="AudioEncoder", **DEPLOYMENT)
class AudioEncoder(EncoderShell):
    """Runs the family's audio encoder."""

    encoder = "audio"
