"""MiniCPM-o 4.5's picture rules: an overview, slices on the grid nearest in shape, and placeholders.

A picture of more than one slice's area is cut into at most `max_slice_nums` slices; the number of
slices is the area in slices, rounded up, and one more or fewer where that fits the shape better.
"""

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from PIL import Image
from transformers import AutoImageProcessor
from transformers.image_processing_utils import BaseImageProcessor, BatchFeature
from transformers.processing_utils import ImagesKwargs

Size = tuple[int, int]  # (width, height), or (columns, rows) of a grid


def to_multiple(length: float, step: int) -> int:
    """The multiple of `step` nearest to `length`, at least one step."""
    return max(round(length / step) * step, step)


def choose_grid(size: Size, max_slices: int, side: int) -> Size | None:
    """The (columns, rows) a picture is cut into, or None where one slice holds it."""
    width, height = size
    wanted = min(math.ceil(width * height / (side * side)), max_slices)
    if wanted <= 1:
        return None
    counts = [n for n in (wanted - 1, wanted, wanted + 1) if 1 < n <= max_slices]
    grids = [(columns, n // columns) for n in counts for columns in range(1, n + 1) if n % columns == 0]
    log_ratio = math.log(width / height)
    return min(grids, key=lambda grid: abs(log_ratio - math.log(grid[0] / grid[1])))


def fit_size(size: tuple[float, float], side: int, patch: int, *, upscale: bool) -> Size:
    """The size of about side x side pixels in the same shape, both sides multiples of the patch."""
    width, height = size
    if upscale or width * height > side * side:
        ratio = width / height
        height = int(side / math.sqrt(ratio))
        width = int(height * ratio)
    return to_multiple(width, patch), to_multiple(height, patch)


def cut(image: Image.Image, max_slices: int, side: int, patch: int) -> list[Image.Image]:
    """The overview first, then the slices row by row."""
    grid = choose_grid(image.size, max_slices, side)
    overview_size = fit_size(image.size, side, patch, upscale=grid is None)
    overview = image.resize(overview_size, resample=Image.Resampling.BICUBIC)
    if grid is None:
        return [overview]
    columns, rows = grid
    cell = (to_multiple(image.width, columns) / columns, to_multiple(image.height, rows) / rows)
    width, height = fit_size(cell, side, patch, upscale=True)
    whole = image.resize((width * columns, height * rows), resample=Image.Resampling.BICUBIC)
    corners = [(x * width, y * height) for y in range(rows) for x in range(columns)]
    return [overview, *(whole.crop((x, y, x + width, y + height)) for x, y in corners)]


def to_strip(pixels: np.ndarray, patch: int) -> np.ndarray:
    """(height, width, 3) to (3, patch, patches * patch): the patches side by side, row by row."""
    rows, columns = pixels.shape[0] // patch, pixels.shape[1] // patch
    blocks = pixels.reshape(rows, patch, columns, patch, 3)
    return np.ascontiguousarray(blocks.transpose(4, 1, 0, 2, 3).reshape(3, patch, -1))


class PictureOptions(ImagesKwargs, total=False):  # type: ignore[call-arg]  # untyped here
    """What a caller may pass for one call, beyond transformers' own."""

    max_slice_nums: int | None


class MiniCPMVImageProcessor(BaseImageProcessor):
    """Pictures to strips of patches, and the placeholder text that goes with a picture's size."""

    model_input_names: ClassVar[list[str]] = ["pixel_values"]
    valid_kwargs = PictureOptions

    def __init__(
        self, max_slice_nums: int = 9, scale_resolution: int = 140, patch_size: int = 14, **kwargs: Any
    ) -> None:
        self.use_image_id = bool(kwargs.pop("use_image_id", True))
        self.image_feature_size = int(kwargs.pop("image_feature_size", 64))
        self.slice_mode = bool(kwargs.pop("slice_mode", True))
        self.mean = list(kwargs.pop("norm_mean", (0.5, 0.5, 0.5)))
        self.std = list(kwargs.pop("norm_std", (0.5, 0.5, 0.5)))
        self.version = kwargs.pop("version", 4.5)
        super().__init__(**kwargs)
        self.max_slice_nums = max_slice_nums
        self.scale_resolution = scale_resolution
        self.patch_size = patch_size

    def get_sliced_grid(self, image_size: Sequence[int], max_slice_nums: int) -> Size | None:
        """(columns, rows) for a picture of (width, height), or None where it is not cut."""
        width, height = (int(length) for length in image_size)
        return choose_grid((width, height), int(max_slice_nums), self.scale_resolution)

    def get_slice_image_placeholder(
        self,
        image_size: Sequence[int],
        image_idx: int = 0,
        max_slice_nums: int | None = None,
        use_image_id: bool | None = None,
    ) -> str:
        """The text that stands for a picture in the prompt, with one <unk> for each embedding."""
        limit = self.max_slice_nums if max_slice_nums is None else int(max_slice_nums)
        unknowns = "<unk>" * self.image_feature_size
        text = f"<image>{unknowns}</image>"
        if self.use_image_id if use_image_id is None else use_image_id:
            text = f"<image_id>{image_idx}</image_id>{text}"
        grid = self.get_sliced_grid(image_size, limit) if self.slice_mode else None
        if grid is None:
            return text
        columns, rows = grid
        return text + "\n".join([f"<slice>{unknowns}</slice>" * columns] * rows)

    def preprocess(
        self,
        images: Any,
        do_pad: bool | None = True,
        max_slice_nums: int | None = None,
        return_tensors: str | None = None,
        **kwargs: Any,
    ) -> BatchFeature:
        """One list of strips, sizes and patch grids for each prompt; `images` is a list for each prompt."""
        limit = self.max_slice_nums if max_slice_nums is None else int(max_slice_nums)
        prompts = [[self._prepare(image, limit) for image in group] for group in _by_prompt(images)]
        data = {
            "pixel_values": [[strip for strips, _, _ in group for strip in strips] for group in prompts],
            "image_sizes": [[torch.tensor(size) for _, size, _ in group] for group in prompts],
            "tgt_sizes": [torch.cat([grids for _, _, grids in group]) if group else [] for group in prompts],
        }
        return BatchFeature(data=data)

    def _prepare(self, image: Any, limit: int) -> tuple[list[torch.Tensor], Size, torch.Tensor]:
        picture = _to_picture(image)
        pieces = [picture]
        if self.slice_mode:
            pieces = cut(picture, limit, self.scale_resolution, self.patch_size)
        mean, std = np.asarray(self.mean, np.float32), np.asarray(self.std, np.float32)
        arrays = [(np.asarray(piece, dtype=np.float32) / 255 - mean) / std for piece in pieces]
        strips = [torch.from_numpy(to_strip(array, self.patch_size)) for array in arrays]
        grids = [(piece.height // self.patch_size, piece.width // self.patch_size) for piece in pieces]
        return strips, picture.size, torch.tensor(grids)


def _by_prompt(images: Any) -> list[list[Any]]:
    if not isinstance(images, (list, tuple)):
        return [[images]]
    if not images or not _is_group(images[0]):
        return [list(images)]
    return [list(group) for group in images]


def _is_group(images: Any) -> bool:
    """Several pictures: a list of them, or the frames of a video as one array."""
    return isinstance(images, (list, tuple)) or getattr(images, "ndim", 3) == 4


def _to_picture(image: Any) -> Image.Image:
    if isinstance(image, Image.Image):
        return image.convert("RGB")
    array = np.asarray(image)
    if array.ndim == 3 and array.shape[0] in (1, 3):
        array = array.transpose(1, 2, 0)
    if np.issubdtype(array.dtype, np.floating):
        array = array * 255
    return Image.fromarray(array.astype(np.uint8).squeeze()).convert("RGB")


AutoImageProcessor.register("MiniCPMVImageProcessor", slow_image_processor_class=MiniCPMVImageProcessor)
