"""The embedded default model's files and rules. Needs transformers and torch; loads no engine."""

import hashlib
import math
import subprocess
import sys
import unicodedata
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from safetensors.torch import load_file
from transformers import AutoConfig, AutoImageProcessor, AutoProcessor, Qwen3Config, Qwen3ForCausalLM
from transformers.models.whisper.modeling_whisper import WhisperConfig, WhisperEncoder

from toy_model import configs, trained, vocabulary, write
from toy_model.checkpoint_code import image_processing_minicpmo as pictures

SIDE, PATCH, QUERIES, MAX_SLICES = configs.SLICE_SIDE, configs.PATCH, configs.QUERIES, 9
ROOT = Path(__file__).parents[2]
lengths = st.integers(1, 3000)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write.ensure(tmp_path_factory.mktemp("toy") / "checkpoint")


@pytest.fixture(scope="module")
def processor(folder: Path) -> Any:
    return AutoProcessor.from_pretrained(folder, trust_remote_code=True)


@pytest.fixture(scope="module")
def tokenizer(processor: Any) -> Any:
    return processor.tokenizer


# The files


def test_bytes_are_the_committed_ones() -> None:
    """The files are the same bytes every time, and the ones whose sums are committed."""
    first, second = write.contents(), write.contents()
    assert first == second
    sums = {name: hashlib.sha256(data).hexdigest() for name, data in first.items()}
    assert sums == write.manifest()


def test_processes_that_start_at_once_leave_one_whole_folder(tmp_path: Path) -> None:
    """Several processes may write the same folder at once; it ends whole and nothing is left beside it."""
    target = tmp_path / "checkpoint"
    command = [sys.executable, "-m", "toy_model.write", "--target", str(target)]
    running = [subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    outputs = [process.communicate()[0].strip() for process in running]
    assert outputs == [str(target)] * 3
    assert write.is_whole(target)
    assert list(tmp_path.iterdir()) == [target]


def test_a_damaged_folder_is_mended(tmp_path: Path) -> None:
    """A file that was cut short or removed is written again."""
    target = write.ensure(tmp_path / "checkpoint")
    (target / "model.safetensors").write_bytes(b"cut short")
    (target / "config.json").unlink()
    assert not write.is_whole(target)
    assert write.is_whole(write.ensure(target))


def test_the_default_place_is_the_users_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a target the folder lies in the user's cache, named by what it holds."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert write.ensure() == tmp_path / "graphserve" / f"toy-minicpmo-{write.version()}"


# The weights


def _names(prefix: str, module: torch.nn.Module) -> dict[str, tuple[int, ...]]:
    return {f"{prefix}.{name}": tuple(value.shape) for name, value in module.state_dict().items()}


def _reference_names(folder: Path) -> dict[str, tuple[int, ...]]:
    """Names and shapes as transformers' own modules have them."""
    config = AutoConfig.from_pretrained(folder, trust_remote_code=True)
    llm_keys = {key: value for key, value in configs.model_config().items() if key in Qwen3Config().to_dict()}
    with torch.device("meta"):
        llm = Qwen3ForCausalLM(Qwen3Config(**{**llm_keys, "model_type": "qwen3"}))
        ears = WhisperEncoder(WhisperConfig(**config.audio_config.to_dict()))
    return _names("llm", llm) | _names("apm", ears)


def test_language_and_audio_weights_have_transformers_names(folder: Path) -> None:
    """Every tensor of the language model and the audio encoder fits the module that it is named after."""
    ours = {n: v.shape for n, v in trained.tensors().items() if n.split(".")[0] in ("llm", "apm")}
    assert ours == _reference_names(folder)


VISION_LAYER = (
    *(
        f"self_attn.{part}.{kind}"
        for part in ("q_proj", "k_proj", "v_proj", "out_proj")
        for kind in ("weight", "bias")
    ),
    *(
        f"{part}.{kind}"
        for part in ("layer_norm1", "layer_norm2", "mlp.fc1", "mlp.fc2")
        for kind in ("weight", "bias")
    ),
)
VISION_REST = (
    "vpm.embeddings.patch_embedding.weight vpm.embeddings.patch_embedding.bias "
    "vpm.embeddings.position_embedding.weight vpm.post_layernorm.weight vpm.post_layernorm.bias "
    "resampler.query resampler.proj resampler.kv_proj.weight resampler.attn.in_proj_weight "
    "resampler.attn.in_proj_bias resampler.attn.out_proj.weight resampler.attn.out_proj.bias "
    "resampler.ln_q.weight resampler.ln_q.bias resampler.ln_kv.weight resampler.ln_kv.bias "
    "resampler.ln_post.weight resampler.ln_post.bias "
    "audio_projection_layer.linear1.weight audio_projection_layer.linear1.bias "
    "audio_projection_layer.linear2.weight audio_projection_layer.linear2.bias"
).split()


def test_the_other_weights_have_the_real_names() -> None:
    """Vision, resampler and audio projection hold the real checkpoint's tensors, no more and no fewer."""
    layers = [f"vpm.encoder.layers.{n}.{name}" for n in range(configs.VISION_LAYERS) for name in VISION_LAYER]
    ours = {name for name in trained.tensors() if name.split(".")[0] not in ("llm", "apm")}
    assert ours == {*layers, *VISION_REST}


def test_the_checkpoint_holds_what_was_trained(folder: Path) -> None:
    """Written in float32, every value is the trained one in bfloat16, exactly and finite."""
    written, source = load_file(folder / "model.safetensors"), load_file(trained.FILE)
    assert written.keys() == source.keys()
    for name, value in written.items():
        assert torch.isfinite(value).all(), name
        assert source[name].dtype == torch.bfloat16
        assert torch.equal(value, source[name].float()), name


def test_other_weights_than_the_trained_ones_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file with one other bit is said to be damaged, and nothing is written from it."""
    data = bytearray(trained.FILE.read_bytes())
    data[-1] ^= 1
    monkeypatch.setattr(trained, "FILE", tmp_path / "model.safetensors")
    trained.FILE.write_bytes(data)
    with pytest.raises(ValueError, match=r"model\.safetensors of the toy model is damaged"):
        write.ensure(tmp_path / "checkpoint")
    assert not (tmp_path / "checkpoint").exists()


def test_the_trained_file_is_small_and_the_one_of_the_card() -> None:
    """A clone carries at most 12 MB of it, and the model card names its hash."""
    assert trained.FILE.stat().st_size <= 12_000_000
    assert trained.SHA256 in trained.FILE.with_name("README.md").read_text(encoding="utf-8")


# Pictures


def _restated_size(width: float, height: float) -> tuple[int, int]:
    """About SIDE x SIDE pixels in the given shape, in whole patches."""
    ratio = width / height
    tall = int(SIDE / math.sqrt(ratio))
    wide = int(tall * ratio)
    return max(1, round(wide / PATCH)) * PATCH, max(1, round(tall / PATCH)) * PATCH


@given(width=lengths, height=lengths)
def test_the_grid_is_the_nearest_in_shape(width: int, height: int) -> None:
    """As many slices as the area asks for, give or take one, at most nine, in the nearest shape."""
    grid = pictures.choose_grid((width, height), MAX_SLICES, SIDE)
    wanted = min(-(-width * height // SIDE**2), MAX_SLICES)
    if wanted == 1:
        assert grid is None
        return
    assert grid is not None

    def distance(columns: int, rows: int) -> float:
        return abs(math.log(width / height) - math.log(columns / rows))

    allowed = [
        (columns, rows)
        for columns in range(1, MAX_SLICES + 1)
        for rows in range(1, MAX_SLICES + 1)
        if 2 <= columns * rows <= MAX_SLICES and abs(columns * rows - wanted) <= 1
    ]
    assert grid in allowed
    assert distance(*grid) <= min(distance(*other) for other in allowed) + 1e-9


@settings(max_examples=30, deadline=None)
@given(width=st.integers(8, 700), height=st.integers(8, 700))
def test_pieces_patches_and_placeholders_agree(processor: Any, width: int, height: int) -> None:
    """Every piece has whole patches, about one slice's area, and one run of placeholders in the prompt."""
    image = Image.new("RGB", (width, height), "teal")
    out = processor.image_processor([[image]])
    strips, grids = out["pixel_values"][0], out["tgt_sizes"][0]
    assert [tuple(strip.shape) for strip in strips] == [
        (3, PATCH, int(rows * columns) * PATCH) for rows, columns in grids
    ]
    assert out["image_sizes"][0][0].tolist() == [width, height]
    grid = pictures.choose_grid((width, height), MAX_SLICES, SIDE)
    text = processor.image_processor.get_slice_image_placeholder((width, height), image_idx=3)
    assert text.startswith("<image_id>3</image_id><image>" + "<unk>" * QUERIES + "</image>")
    assert text.count("<unk>") == QUERIES * len(strips)
    if grid is None:
        assert len(strips) == 1
        assert (int(grids[0][1]) * PATCH, int(grids[0][0]) * PATCH) == _restated_size(width, height)
        return
    columns, rows = grid
    assert len(strips) == columns * rows + 1
    assert text.count("\n") == rows - 1
    cell = (max(1, round(width / columns)) * columns / columns, max(1, round(height / rows)) * rows / rows)
    wanted = _restated_size(*cell)
    assert {(int(w) * PATCH, int(h) * PATCH) for h, w in grids[1:]} == {wanted}


def test_strips_hold_the_patches_row_by_row() -> None:
    """A strip is what unfolding the picture gives, normalised to minus one to one."""
    pixels = np.random.RandomState(1).rand(4 * PATCH, 3 * PATCH, 3).astype(np.float32)
    unfolded = torch.nn.functional.unfold(torch.from_numpy(pixels).permute(2, 0, 1), PATCH, stride=PATCH)
    expected = unfolded.reshape(3, PATCH, PATCH, -1).permute(0, 1, 3, 2).reshape(3, PATCH, -1)
    assert np.array_equal(pictures.to_strip(pixels, PATCH), expected.numpy())


def test_black_and_white_are_minus_one_and_one(processor: Any) -> None:
    """Pixels are normalised by mean and deviation of one half."""
    images = [Image.new("RGB", (SIDE, SIDE), colour) for colour in ("black", "white")]
    black, white = processor.image_processor([images])["pixel_values"][0]
    assert (black == -1).all()
    assert (white == 1).all()


def test_the_image_processor_loads_by_its_own_name(folder: Path) -> None:
    """The checkpoint's own code serves AutoImageProcessor, with the limits of the config."""
    loaded = AutoImageProcessor.from_pretrained(folder, trust_remote_code=True)
    assert (loaded.max_slice_nums, loaded.scale_resolution, loaded.patch_size) == (MAX_SLICES, SIDE, PATCH)


# Sounds


@given(samples=st.integers(800, 16_000 * 95))
def test_audio_placeholders_match_what_the_encoder_gives(processor: Any, samples: int) -> None:
    """One placeholder for each embedding of each 30 s clip, in runs of one second's worth."""
    clips = [min(30 * 16_000, samples - start) for start in range(0, samples, 30 * 16_000)]
    pooled = [max(0, (-(-clip // 160) + 1) // 2 // configs.POOL_STEP) for clip in clips]
    text = processor.get_audio_placeholder(samples)
    runs = [part.count("<unk>") for part in text.split("<|audio_start|>")[1:]]
    assert sum(runs) == sum(pooled)
    assert all(run == 10 for run in runs[:-1])


def test_long_sounds_are_cut_into_clips_of_30_s(processor: Any) -> None:
    """A sound of 35 s becomes clips of 3000 and 500 mel frames of 80 bins."""
    out = processor("(<audio>./</audio>)", audios=[[np.zeros(35 * 16_000, dtype=np.float32)]])
    assert tuple(out["audio_features"].shape) == (2, configs.MEL_BINS, 3000)
    assert out["audio_feature_lens"][0].tolist() == [3000, 500]


def test_a_prompt_keeps_the_order_of_its_parts(processor: Any, tokenizer: Any) -> None:
    """Placeholders stand where the parts stand, pictures numbered in order."""
    image, sound = Image.new("RGB", (50, 50)), np.zeros(16_000, dtype=np.float32)
    text = "a(<image>./</image>)b(<audio>./</audio>)c(<image>./</image>)"
    ids = processor(text, images=[[image, image]], audios=[[sound]])["input_ids"][0]
    kept = [token for token in tokenizer.convert_ids_to_tokens(ids) if token != "<unk>"]
    one, two = (["<image_id>", number, "</image_id>", "<image>", "</image>"] for number in "01")
    assert kept == ["a", *one, "b", "<|audio_start|>", "<|audio_end|>", "c", *two]


# Text


@given(text=st.text())
def test_text_survives_the_tokenizer(tokenizer: Any, text: str) -> None:
    """Any text without markers comes back as it was, up to Unicode's composed form."""
    if any(marker in text for marker in (*vocabulary.SPECIAL, *vocabulary.VISIBLE)):
        return
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert tokenizer.decode(ids) == unicodedata.normalize("NFC", text)


def test_every_marker_is_one_token(tokenizer: Any) -> None:
    """The real special tokens are single ids, also amid text, and words are too."""
    markers = (*vocabulary.SPECIAL, *vocabulary.VISIBLE)
    for marker in markers:
        assert tokenizer.convert_ids_to_tokens(tokenizer.encode(f"x{marker}y")) == ["x", marker, "y"]
    for word in vocabulary.answer_words():
        assert len(tokenizer.encode(word)) == len(tokenizer.encode(word.strip())) == 1
    assert len(tokenizer) == configs.model_config()["vocab_size"]
    assert tokenizer.im_start_id == tokenizer.convert_tokens_to_ids("<image>")
    assert tokenizer.audio_end_id == tokenizer.convert_tokens_to_ids("<|audio_end|>")


def test_a_conversation_with_tools_reads_as_in_the_real_model(tokenizer: Any) -> None:
    """Turns, tool descriptions, calls and answers stand in the real model's frame."""
    call = {"type": "function", "function": {"name": "add", "arguments": {"a": 1}}}
    messages = [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "Add."},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "2"},
        {"role": "tool", "content": "3"},
    ]
    tools = [{"type": "function", "function": {"name": "add", "parameters": {}}}]
    text = tokenizer.apply_chat_template(messages, tools=tools, tokenize=False, add_generation_prompt=True)
    assert text.startswith("<|im_start|>system\nBe kind.\n\n# Tools\n")
    assert '<tools>\n{"type": "function", "function": {"name": "add", "parameters": {}}}\n</tools>' in text
    assert text.endswith(
        "<|im_start|>user\nAdd.<|im_end|>\n"
        '<|im_start|>assistant\n<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call><|im_end|>\n'
        "<|im_start|>user\n<tool_response>\n2\n</tool_response>\n<tool_response>\n3\n</tool_response><|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def test_the_frames_of_a_video_are_so_many_pictures(folder: Path) -> None:
    """Frames in one array are taken as upstream hands them over when it sizes its memory."""
    frames = np.random.default_rng(0).integers(0, 255, (3, 90, 70, 3), dtype=np.uint8)
    processor = AutoImageProcessor.from_pretrained(folder, trust_remote_code=True)
    prepared = processor([frames], max_slice_nums=1)
    assert len(prepared["pixel_values"][0]) == 3
