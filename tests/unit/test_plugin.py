"""The fixes of upstream's gaps: each applies to the installed vLLM, once, and leaves a mended one alone."""

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from deployments.upstream import plugin


@pytest.fixture(scope="module")
def minicpmo() -> Any:
    """Upstream's module with our patches, as every vLLM process has it."""
    module = pytest.importorskip("vllm.model_executor.models.minicpmo")
    plugin.register()
    return module


def patched(minicpmo: Any) -> tuple[Any, ...]:
    from vllm.model_executor.model_loader.dummy_loader import DummyModelLoader

    return (
        minicpmo.MiniCPMOAudioEmbeddingItems,
        minicpmo.MiniCPMOMultiModalProcessor._get_prompt_updates,
        minicpmo.MiniCPMOProcessingInfo.get_data_parser,
        DummyModelLoader.load_weights,
    )


def test_every_patch_applied_to_this_vllm(minicpmo: Any) -> None:
    """The faults we know of are in the installed vLLM, and each is replaced by code of ours."""
    homes = {found.__module__ for found in patched(minicpmo)}
    assert homes == {plugin.__name__}


def test_random_weights_leave_nothing_on_the_cpu(minicpmo: Any) -> None:
    """Loading random weights moves MiniCPM-o's resampler too, once, and asks no other model for it."""
    from vllm.model_executor.model_loader.dummy_loader import DummyModelLoader

    moved = []
    resampled = torch.nn.Module()
    resampled._ensure_resampler_device = lambda: moved.append("resampler")
    DummyModelLoader.load_weights(SimpleNamespace(), resampled, None)
    DummyModelLoader.load_weights(SimpleNamespace(), torch.nn.Module(), None)
    assert moved == ["resampler"]


def test_registering_again_changes_nothing(minicpmo: Any) -> None:
    """vLLM loads plugins in each process more than once: a second patch on a patch would be a loop."""
    before = patched(minicpmo)
    plugin.register()
    plugin.register()
    assert patched(minicpmo) == before


def test_what_upstream_has_mended_is_left_alone(minicpmo: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A newer vLLM without the faults runs its own code."""

    class Mended:
        def __init__(self, data: Any) -> None:
            self.modality = "audio"

        def _get_prompt_updates(self) -> str:
            return "upstream's own"

        def get_data_parser(self) -> dict[str, bool]:
            return {"allow_missing_mm_embeddings": True}

    for name in ("MiniCPMOAudioEmbeddingItems", "MiniCPMOMultiModalProcessor", "MiniCPMOProcessingInfo"):
        monkeypatch.setattr(minicpmo, name, Mended)
    before = dict(vars(Mended))
    plugin.register()
    assert minicpmo.MiniCPMOAudioEmbeddingItems is Mended
    assert dict(vars(Mended)) == before


def test_audio_embeddings_are_labelled_as_audio(minicpmo: Any) -> None:
    """Mixed with pictures, sounds must not be taken for pictures."""
    import torch

    items = minicpmo.MiniCPMOAudioEmbeddingItems({"audio_embeds": [torch.zeros(3, 4)]}, _fields)
    assert items.modality == "audio"
    assert items.get_count() == 1


def _fields(_: Mapping[str, Any]) -> Mapping[str, Any]:
    from vllm.multimodal.inputs import MultiModalFieldConfig

    return {"audio_embeds": MultiModalFieldConfig.batched("audio")}


def test_the_data_parser_keeps_the_processors_options(minicpmo: Any) -> None:
    """A request whose embedding is cached may come with its metadata alone, if upstream allows it."""
    for allowed in (True, False):
        info = SimpleNamespace(
            get_default_audio_sampling_rate=lambda: 16_000,
            _get_expected_hidden_size=lambda: 64,
            allow_missing_mm_embeddings=allowed,
        )
        parser = minicpmo.MiniCPMOProcessingInfo.get_data_parser(info)
        assert isinstance(parser, minicpmo.MiniCPMOMultiModalDataParser)
        assert parser.allow_missing_mm_embeddings is allowed
        assert parser.expected_hidden_size == 64


class Info:
    """As much of upstream's processing info as the placeholder rule needs."""

    audio_pattern = "<audio>"

    def __init__(self, pool: int, hop: int = 160) -> None:
        self.pool = pool
        self.hop = hop

    def get_default_audio_pool_step(self) -> int:
        return self.pool

    def get_hf_processor(self) -> Any:
        return SimpleNamespace(feature_extractor=SimpleNamespace(hop_length=self.hop))

    def get_tokenizer(self) -> "Tokenizer":
        return Tokenizer()


class Tokenizer:
    """One id a word."""

    def get_vocab(self) -> dict[str, int]:
        return {"<unk>": 7}

    def encode(self, text: str, **_: Any) -> list[int]:
        return [7 if word == "<unk>" else 1 for word in text.split()]


def tokens_of(samples: int, pool: int, hop: int) -> int:
    """Upstream's rule from samples to placeholder tokens."""
    frames = -(-samples // hop)
    return int(((frames - 1) // 2 + 1 - pool) // pool + 1)


@given(st.integers(1, 20_000), st.sampled_from([2, 5]), st.sampled_from([160, 320]))
def test_samples_for_tokens_turns_the_rule_round(tokens: int, pool: int, hop: int) -> None:
    """The clip that is asked for has exactly so many tokens, and no shorter one has."""
    samples = plugin.samples_for_tokens(Info(pool, hop), tokens)
    assert tokens_of(samples, pool, hop) == tokens
    assert tokens_of(samples - hop, pool, hop) == tokens - 1


@pytest.mark.parametrize("counts", [[1], [50], [10, 300, 7]])
def test_an_embedding_of_t_tokens_gets_t_placeholders(minicpmo: Any, counts: list[int]) -> None:
    """Every sound of a request gets as many placeholders as its own embedding has rows."""
    import torch

    embeds = [torch.zeros(count, 4) for count in counts]
    audios = minicpmo.MiniCPMOAudioEmbeddingItems({"audio_embeds": embeds}, _fields)
    info = Info(pool=5)
    processor = SimpleNamespace(
        info=info, get_audio_prompt_texts=lambda samples: "<a> " + "<unk> " * tokens_of(samples, 5, 160)
    )
    picture, sound = SimpleNamespace(modality="image"), SimpleNamespace(modality="audio")
    update = plugin._audio_prompt_updates(lambda *_: [picture, sound], minicpmo)
    kept, ours = update(processor, {"audio": audios}, {}, {})
    assert kept is picture
    for index, count in enumerate(counts):
        details = ours.replacement(index)
        assert list(details.full).count(7) == count
        assert len(details.full) == count + 1
