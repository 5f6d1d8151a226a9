"""Lets a processor that also takes videos be loaded where torchvision cannot be had.

Qwen's processors hold a video processor, which needs torchvision. PyPI has that package only as a CUDA build
that does not load beside a CPU-only torch, so on the CPU such a processor could not be loaded at all, though
its pictures need nothing of it. We serve no videos.
"""

from transformers.utils import is_torchvision_available


def fill_torchvision() -> bool:
    """Load such processors without their video part if, and only if, torchvision is missing. True if so."""
    if is_torchvision_available():
        return False
    from transformers import Qwen2_5_VLProcessor

    Qwen2_5_VLProcessor.get_attributes = classmethod(_without_video)
    return True


def _without_video(cls: type) -> list[str]:
    return ["image_processor", "tokenizer"]
