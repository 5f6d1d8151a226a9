"""The ``vllm.general_plugins`` entry point: fills upstream's gaps in taking embeddings.

Every patch is guarded by a check that the fault it mends is still there, so that a newer vLLM
which mended it runs its own code. Loaded by vLLM in each of its processes, more than once.
"""

import inspect
import logging
from collections.abc import Mapping
from typing import Any

logger = logging.getLogger(__name__)


def register() -> None:
    """Apply every patch whose fault is present. Safe to call again."""
    from deployments.upstream.llama4_embeds import register_llama4_embeds
    from deployments.upstream.llama4_pictures import fill_picture_functions
    from deployments.upstream.qwen_pictures import use_pillow_for_qwen
    from deployments.upstream.sinc_resample import fill_torchaudio

    mend_minicpmo_audio_embeds()
    mend_random_minicpmo()
    fill_torchaudio()
    fill_picture_functions()
    register_llama4_embeds()
    use_pillow_for_qwen()


def mend_minicpmo_audio_embeds() -> None:
    """Let MiniCPM-o take audio embeddings (vLLM 0.32 and 0.33 label them images and miscount them)."""
    from vllm.model_executor.models import minicpmo

    items_class = minicpmo.MiniCPMOAudioEmbeddingItems
    if 'modality="image"' in inspect.getsource(items_class.__init__):
        minicpmo.MiniCPMOAudioEmbeddingItems = _audio_embedding_items(minicpmo)
        logger.info("MiniCPM-o audio embeddings: mended the modality of embedding items")
    processor = minicpmo.MiniCPMOMultiModalProcessor
    if "sum(map(len, single_audio_embeds))" in inspect.getsource(processor._get_prompt_updates):
        processor._get_prompt_updates = _audio_prompt_updates(processor._get_prompt_updates, minicpmo)
        logger.info("MiniCPM-o audio embeddings: mended the length of placeholders")
    info = minicpmo.MiniCPMOProcessingInfo
    if "allow_missing_mm_embeddings" not in inspect.getsource(info.get_data_parser):
        info.get_data_parser = _data_parser(minicpmo)
        logger.info("MiniCPM-o audio embeddings: mended the data parser's options")


def mend_random_minicpmo() -> None:
    """With ``load_format: dummy`` move MiniCPM-o's resampler to its device, which else loading weights does.

    Its position table stayed on the CPU: every picture was slow, and a capture failed.
    """
    from vllm.model_executor.model_loader.dummy_loader import DummyModelLoader

    upstream = DummyModelLoader.load_weights
    if "_ensure_resampler_device" in inspect.getsource(upstream):
        return

    def load_weights(self: Any, model: Any, model_config: Any) -> None:
        upstream(self, model, model_config)
        ensure = getattr(model, "_ensure_resampler_device", None)  # asked for twice it does nothing
        if ensure is not None:
            ensure()

    DummyModelLoader.load_weights = load_weights


def _audio_embedding_items(minicpmo: Any) -> type:
    from vllm.multimodal.parse import DictEmbeddingItems

    class MiniCPMOAudioEmbeddingItems(DictEmbeddingItems):
        """Audio embeddings, labelled as audio."""

        def __init__(self, data: Mapping[str, Any], fields_factory: Any) -> None:
            super().__init__(
                data,
                modality="audio",
                required_fields={"audio_embeds"},
                fields_factory=fields_factory,
            )

    return MiniCPMOAudioEmbeddingItems


def _audio_prompt_updates(original: Any, minicpmo: Any) -> Any:
    """Wrap upstream's method so that an embedding of T tokens gets T placeholders.

    Placeholder text is chunked as the processor chunks it, so its length comes from
    ``samples_for_tokens``, the smallest clip whose placeholder has T tokens.
    """

    def get_prompt_updates(self: Any, mm_items: Any, hf_processor_mm_kwargs: Any, out_mm_kwargs: Any) -> Any:
        updates = original(self, mm_items, hf_processor_mm_kwargs, out_mm_kwargs)
        if "audio" not in mm_items:
            return updates
        audios = mm_items["audio"]
        if not isinstance(audios, minicpmo.MiniCPMOAudioEmbeddingItems):
            return updates
        tokenizer = self.info.get_tokenizer()
        unk = [tokenizer.get_vocab()["<unk>"]]

        def replacement(item_idx: int) -> Any:
            tokens = len(audios.get(item_idx)["audio_embeds"])
            text = self.get_audio_prompt_texts(samples_for_tokens(self.info, tokens))
            ids = minicpmo.cached_encode(tokenizer, text, add_special_tokens=False)
            return minicpmo.PromptUpdateDetails.select_token_ids(ids, unk)

        target = minicpmo.cached_encode(tokenizer, self.info.audio_pattern, add_special_tokens=False)
        return [
            minicpmo.PromptReplacement(modality="audio", target=target, replacement=replacement)
            if update.modality == "audio"
            else update
            for update in updates
        ]

    return get_prompt_updates


def samples_for_tokens(info: Any, tokens: int) -> int:
    """Samples of the shortest clip that upstream's placeholder rule turns into ``tokens`` tokens.

    The rule: frames = ceil(samples / hop), after the convolution (frames - 1) // 2 + 1, after
    pooling (that - pool) // pool + 1.
    """
    pool = info.get_default_audio_pool_step()
    after_convolution = tokens * pool
    frames = 2 * (after_convolution - 1) + 1
    return int(frames * info.get_hf_processor().feature_extractor.hop_length)


def _data_parser(minicpmo: Any) -> Any:
    def get_data_parser(self: Any) -> Any:
        return minicpmo.MiniCPMOMultiModalDataParser(
            target_sr=self.get_default_audio_sampling_rate(),
            expected_hidden_size=self._get_expected_hidden_size(),
            allow_missing_mm_embeddings=self.allow_missing_mm_embeddings,
        )

    return get_data_parser
