"""Processor of the toy checkpoint: prompts with pictures and sounds to what the encoders take."""

import math
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from transformers.image_processing_utils import BatchFeature
from transformers.processing_utils import ProcessorMixin

IMAGE_TAG = "(<image>./</image>)"
AUDIO_TAG = "(<audio>./</audio>)"
SAMPLING_RATE = 16_000
MAX_CLIP_S = 30  # the audio encoder's window; longer sounds are cut into clips of this length


class MiniCPMOProcessor(ProcessorMixin):
    """Joins the image processor, the Whisper feature extractor and the tokenizer."""

    def __init__(
        self, image_processor: Any = None, feature_extractor: Any = None, tokenizer: Any = None, **kwargs: Any
    ) -> None:
        super().__init__(image_processor, feature_extractor, tokenizer)
        self.pool_step = int(kwargs.get("audio_pool_step", 5))

    def audio_token_count(self, samples: int) -> int:
        """Embeddings that a sound of so many samples becomes."""
        mel_frames = math.ceil(samples / self.feature_extractor.hop_length)
        return ((mel_frames - 1) // 2 + 1) // self.pool_step

    def get_audio_placeholder(self, audio_lens: int, chunk_input: bool = True, chunk_length: int = 1) -> str:
        """The text that stands for a sound, in parts of `chunk_length` seconds where asked."""
        total = self.audio_token_count(audio_lens)
        per_part = ((chunk_length * 100 - 1) // 2 + 1) // self.pool_step if chunk_input else max(total, 1)
        parts = [min(per_part, total - start) for start in range(0, total, per_part)]
        start, end = self.tokenizer.audio_start, self.tokenizer.audio_end
        return "".join(f"{start}{'<unk>' * count}{end}" for count in parts)

    def audio_feature_extract(self, audios: Sequence[Sequence[np.ndarray]]) -> dict[str, Any]:
        """Log-mel features, one row for each clip, and for each prompt the lengths of its clips."""
        limit = MAX_CLIP_S * SAMPLING_RATE
        features, lengths = [], []
        for group in audios:
            clips = [sound[at : at + limit] for sound in group for at in range(0, len(sound), limit)]
            out = self.feature_extractor(
                clips,
                sampling_rate=SAMPLING_RATE,
                return_attention_mask=True,
                padding="max_length",
                return_tensors="pt",
            )
            frames = out["attention_mask"].sum(dim=1)
            features += [row[:, :count].T for row, count in zip(out["input_features"], frames, strict=True)]
            lengths.append(frames)
        padded = torch.nn.utils.rnn.pad_sequence(features, batch_first=True).permute(0, 2, 1)
        return {"audio_features": padded, "audio_feature_lens": lengths}

    def __call__(
        self,
        text: str | list[str],
        images: Any = None,
        audios: Sequence[Sequence[np.ndarray]] | None = None,
        max_slice_nums: int | None = None,
        use_image_id: bool | None = None,
        chunk_input: bool = True,
        **kwargs: Any,
    ) -> BatchFeature:
        """Expand every tag to its placeholder; `images` and `audios` hold a list for each prompt."""
        prompts = [text] if isinstance(text, str) else list(text)
        data: dict[str, Any] = {}
        if images is not None:
            data.update(self.image_processor(images, max_slice_nums=max_slice_nums))
        if audios is not None:
            data.update(self.audio_feature_extract(audios))
        ids = []
        for index, prompt in enumerate(prompts):
            sizes = data["image_sizes"][index] if images is not None else []
            pictures = [
                self.image_processor.get_slice_image_placeholder(size, number, max_slice_nums, use_image_id)
                for number, size in enumerate(sizes)
            ]
            sounds = audios[index] if audios is not None else []
            spoken = [self.get_audio_placeholder(len(sound), chunk_input) for sound in sounds]
            ids.append(self.tokenizer.encode(_expand(prompt, pictures, spoken), add_special_tokens=False))
        return BatchFeature(data={"input_ids": ids, **data})


def _expand(prompt: str, pictures: list[str], sounds: list[str]) -> str:
    waiting = {IMAGE_TAG: iter(pictures), AUDIO_TAG: iter(sounds)}
    pattern = "|".join(re.escape(tag) for tag in waiting)
    return re.sub(pattern, lambda match: next(waiting[match.group()]), prompt)
