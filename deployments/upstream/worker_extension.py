"""Methods that vLLM's worker gains by ``worker_extension_cls``, called by name through its RPC."""

from typing import Any


class WorkerExtension:
    """Mixed into vLLM's worker class by vLLM itself."""

    get_model: Any

    def graphserve_modules_loaded(self) -> list[str]:
        """Direct child modules of the model that hold weights."""
        from deployments.upstream.encoder_model import modules_loaded

        return list(modules_loaded(self.get_model()))
