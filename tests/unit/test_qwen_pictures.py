"""Qwen2.5-VL's pictures without torchvision: applied where that is missing, and only there."""

import importlib.util
from pathlib import Path
from typing import Any

import pytest
from transformers import Qwen2_5_VLProcessor
from transformers.utils import is_torchvision_available

from deployments.upstream import qwen_pictures
from tests.media import drawn
from tiny_models import folders

without_torchvision = pytest.mark.skipif(is_torchvision_available(), reason="torchvision is installed")


def state() -> list[Any]:
    return [Qwen2_5_VLProcessor.get_attributes(), getattr(Qwen2_5_VLProcessor, "video_processor", None)]


@without_torchvision
def test_upstreams_rule_can_be_imported_and_the_processor_loaded(tmp_path: Path) -> None:
    """What failed is done: the function that upstream's model takes, and a checkpoint's whole processor."""
    assert qwen_pictures.use_pillow_for_qwen()
    smart_resize = importlib.import_module(qwen_pictures.MODULE).smart_resize
    assert smart_resize(90, 120, 28, 3136, 100_352) == (84, 112)
    processor = Qwen2_5_VLProcessor.from_pretrained(folders.ensure("qwen2_5_vl", tmp_path / "checkpoint"))
    out = processor(text="<|image_pad|>", images=[drawn(120, 90)], return_tensors="np")
    assert out["image_grid_thw"].tolist() == [[1, 6, 8]]
    assert out["pixel_values"].shape == (48, 1176)


@without_torchvision
def test_registering_again_changes_nothing() -> None:
    """vLLM loads plugins in each process more than once."""
    qwen_pictures.use_pillow_for_qwen()
    attributes, _ = state()
    assert qwen_pictures.use_pillow_for_qwen()
    assert state()[0] == attributes == ["image_processor", "tokenizer"]


def test_where_torchvision_is_there_nothing_is_touched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Upstream's own processor, with its video part, is then the one that runs."""
    monkeypatch.setattr("transformers.utils.is_torchvision_available", lambda: True)
    before = state()
    assert not qwen_pictures.use_pillow_for_qwen()
    assert state() == before


def test_another_transformers_does_not_stop_other_models(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every vLLM process runs this, so it stands back where there is nothing to put in place."""
    monkeypatch.setattr("transformers.utils.is_torchvision_available", lambda: False)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    before = state()
    assert not qwen_pictures.use_pillow_for_qwen()
    assert state() == before
