"""Methods that vLLM's worker gains by ``worker_extension_cls``, called by name through its RPC."""

from typing import Any


class WorkerExtension:
    """Mixed into vLLM's worker class by vLLM itself."""

    get_model: Any
    device: Any

    def graphserve_modules_loaded(self) -> list[str]:
        """Direct child modules of the model that hold weights."""
        from deployments.upstream.encoder_model import modules_loaded

        return list(modules_loaded(self.get_model()))

    def graphserve_device_uuid(self) -> str | None:
        """UUID of the GPU that holds this worker's part of the model; None on the CPU."""
        from deployments.placement import uuid_of_device

        return uuid_of_device(self.device) if self.device.type == "cuda" else None
