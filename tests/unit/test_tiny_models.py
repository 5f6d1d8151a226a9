"""The tiny checkpoints: written once, the same bytes every time, with the real markers. Loads no engine."""

from pathlib import Path
from typing import Any

import pytest

from tiny_models import folders, llama4
from toy_model import vocabulary as words


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("name", folders.names())
def test_a_checkpoint_is_written_once_and_found_again(cache: Path, name: str) -> None:
    """The second start reads what the first wrote; nothing half-written lies beside it."""
    folder = folders.ensure(name)
    written = (folder / "model.safetensors").stat().st_mtime_ns
    assert folders.ensure(name) == folder
    assert (folder / "model.safetensors").stat().st_mtime_ns == written
    assert list((cache / "graphserve").iterdir()) == [folder]
    assert {"config.json", "tokenizer.json", "preprocessor_config.json"} <= {f.name for f in folder.iterdir()}


def test_the_same_bytes_every_time() -> None:
    """Random weights come from a seed, so that an answer is the same on every machine."""
    assert llama4.contents() == llama4.contents()


def test_a_folder_in_the_way_is_an_error(cache: Path) -> None:
    """A folder that holds something else is not taken for a checkpoint."""
    target = cache / "mine"
    target.mkdir()
    (target / "notes").write_text("mine")
    with pytest.raises(OSError, match="mine"):
        folders.ensure("llama4", target)
    assert [path.name for path in cache.iterdir()] == ["mine"]


def test_llama4_keeps_the_words_and_has_the_real_markers() -> None:
    """Ids are the toy's, so that its weights know which token ends; markers are Llama 4's."""
    ids, toy = llama4.vocabulary(), words.vocabulary()
    assert sorted(ids.values()) == sorted(toy.values())
    assert ids["<|eot|>"] == toy["<|im_end|>"]
    assert all(ids[word] == toy[word] for word in map(words.spell, words.answer_words()))
    assert not {"<|im_end|>", "<|vision_start|>", "<slice>"} & set(ids)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    transformers = pytest.importorskip("transformers")
    return transformers.AutoTokenizer.from_pretrained(
        folders.ensure("llama4", tmp_path_factory.mktemp("tiny") / "llama4")
    )


@pytest.mark.parametrize("marker", sorted(llama4.SPECIAL.values()))
def test_every_marker_is_one_token(tokenizer: Any, marker: str) -> None:
    """Also amid text."""
    assert tokenizer.convert_ids_to_tokens(tokenizer.encode(f"x{marker}y")) == ["x", marker, "y"]


def test_a_conversation_reads_as_in_the_real_model(tokenizer: Any) -> None:
    """Turns stand in the real model's frame, pictures where they were put."""
    messages = [
        {"role": "system", "content": "Be kind."},
        {
            "role": "user",
            "content": [{"type": "text", "text": "a"}, {"type": "image"}, {"type": "text", "text": "b"}],
        },
    ]
    assert tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True) == (
        "<|begin_of_text|><|header_start|>system<|header_end|>\n\nBe kind.<|eot|>"
        "<|header_start|>user<|header_end|>\n\na<|image|>b<|eot|>"
        "<|header_start|>assistant<|header_end|>\n\n"
    )
