"""Lets Llama 4's image processor be loaded where torchvision cannot be had.

The processor exists only on top of torchvision's pure-Python image functions. PyPI has that package only as
a CUDA build that does not load beside a CPU-only torch. The four functions used are torchvision's
(BSD-3-Clause), operation for operation, so that pixels are the same bits (checked against it where it is
installed, and against numbers recorded from it elsewhere). Where torchvision is there, nothing here is used.
"""

import importlib
import importlib.util
import platform
import sys
from enum import Enum
from types import ModuleType
from typing import Any

import numpy as np
import torch

MODULE = "transformers.models.llama4.image_processing_llama4"
FUNCTIONS = "torchvision.transforms.v2"


class InterpolationMode(Enum):
    """torchvision's names of what ``torch.nn.functional.interpolate`` can do."""

    NEAREST_EXACT = "nearest-exact"
    BILINEAR = "bilinear"
    BICUBIC = "bicubic"
    LANCZOS = "lanczos"


def pil_to_tensor(picture: Any) -> torch.Tensor:
    """A picture as uint8, (channels, height, width)."""
    pixels = torch.as_tensor(np.array(picture, copy=True))
    return pixels.view(picture.size[1], picture.size[0], len(picture.getbands())).permute(2, 0, 1)


def resize(
    image: torch.Tensor, size: tuple[int, int], *, interpolation: InterpolationMode, antialias: bool = True
) -> torch.Tensor:
    """Bilinear, in uint8 where torch has that and torchvision uses it, elsewhere in float32 and rounded."""
    if interpolation is not InterpolationMode.BILINEAR:
        raise NotImplementedError(f"resizing with {interpolation.value} needs torchvision")
    if tuple(image.shape[-2:]) == tuple(size):
        return image
    native = image.dtype == torch.float32 or (image.dtype == torch.uint8 and _resizes_uint8())
    pixels = image.reshape(-1, *image.shape[-3:])
    pixels = pixels if native else pixels.to(torch.float32)
    pixels = torch.nn.functional.interpolate(
        pixels, size=list(size), mode="bilinear", align_corners=False, antialias=antialias
    )
    if not native:
        pixels = (pixels if image.is_floating_point() else pixels.round_()).to(image.dtype)
    return pixels.reshape(*image.shape[:-2], *size)


def _resizes_uint8() -> bool:
    fast = torch.backends.cpu.get_cpu_capability() in ("AVX2", "AVX512")
    return fast or platform.machine() in ("aarch64", "arm64")


def pad(image: torch.Tensor, padding: list[int], fill: Any = 0) -> torch.Tensor:
    """Black pixels to the left, top, right and bottom."""
    if any(fill if isinstance(fill, (list, tuple)) else [fill]):
        raise NotImplementedError("padding with a colour needs torchvision")
    left, top, right, bottom = padding
    return torch.nn.functional.pad(image, [left, right, top, bottom])


def normalize(image: torch.Tensor, mean: Any, std: Any, inplace: bool = False) -> torch.Tensor:
    """Subtract the mean and divide by the spread of each channel, in the image's own dtype."""
    mean, std = (torch.as_tensor(v, dtype=image.dtype, device=image.device) for v in (mean, std))
    mean, std = (v.view(-1, 1, 1) if v.ndim == 1 else v for v in (mean, std))
    return (image.sub_(mean) if inplace else image.sub(mean)).div_(std)


def fill_picture_functions() -> bool:
    """Load Llama 4's image processor on these functions where torchvision is missing. True if it is."""
    from transformers.utils import is_torchvision_available

    if is_torchvision_available():
        return False
    import PIL.Image
    from transformers import image_processing_backends as backends
    from transformers.models import llama4

    # Both halves: something else may have loaded the processor's module without the functions it needs.
    if MODULE in sys.modules and hasattr(backends, "tvF"):
        return True
    sys.modules.pop(MODULE, None)
    functional: Any = ModuleType(f"{FUNCTIONS}.functional")
    for part in (InterpolationMode, pil_to_tensor, resize, pad, normalize):
        setattr(functional, part.__name__, part)
    backends.tvF = functional
    backends.pil_torch_interpolation_mapping = {
        PIL.Image.Resampling.BILINEAR: InterpolationMode.BILINEAR,
        PIL.Image.Resampling.BICUBIC: InterpolationMode.BICUBIC,
        PIL.Image.Resampling.NEAREST: InterpolationMode.NEAREST_EXACT,
    }
    llama4.Llama4ImageProcessor = _load(functional).Llama4ImageProcessor
    return True


def _load(functional: ModuleType) -> Any:
    """Import the processor's module while ``torchvision.transforms.v2`` can be imported, and only then.

    For as long as it stays so, the rest of transformers knows that torchvision is missing.
    """
    names = [FUNCTIONS.rsplit(".", depth)[0] for depth in (2, 1)] + [FUNCTIONS]
    parents = {name: ModuleType(name) for name in names}
    for name, module in parents.items():
        module.__path__ = []  # a package
        sys.modules[name] = module
    parents[FUNCTIONS].functional = functional  # type: ignore[attr-defined]
    try:
        return importlib.import_module(MODULE)
    finally:
        for name in parents:
            del sys.modules[name]
