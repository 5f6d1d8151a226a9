"""Qwen2.5-VL's pictures where torchvision cannot be had.

PyPI has that package only as a CUDA build that does not load beside a CPU-only torch. Upstream's model takes
one function from the module of transformers' torchvision image processor, and the model's processor holds a
video processor that needs torchvision too. For pictures transformers has the same rules in Pillow and numpy,
which it chooses by itself where torchvision is missing; we serve no videos.
"""

import importlib
import importlib.util
import sys
from types import SimpleNamespace

MODULE = "transformers.models.qwen2_vl.image_processing_qwen2_vl"
PILLOW_MODULE = "transformers.models.qwen2_vl.image_processing_pil_qwen2_vl"


def use_pillow_for_qwen() -> bool:
    """Put the Pillow rules in torchvision's place if, and only if, that is missing. True if they are."""
    from transformers.utils import is_torchvision_available

    if is_torchvision_available() or importlib.util.find_spec(PILLOW_MODULE) is None:
        return False
    from transformers import Qwen2_5_VLProcessor
    from transformers.processing_utils import VideosKwargs

    sys.modules[MODULE] = importlib.import_module(PILLOW_MODULE)
    Qwen2_5_VLProcessor.get_attributes = classmethod(_without_video)
    # Upstream asks it for the names of its options.
    Qwen2_5_VLProcessor.video_processor = SimpleNamespace(valid_kwargs=VideosKwargs)
    return True


def _without_video(cls: type) -> list[str]:
    return ["image_processor", "tokenizer"]
