"""The audio encoder's deployment."""

from ray import serve

from deployments.encoders.shell import DEPLOYMENT, EncoderShell


@serve.deployment(name="AudioEncoder", **DEPLOYMENT)
class AudioEncoder(EncoderShell):
    """Runs the family's audio encoder."""

    encoder = "audio"
