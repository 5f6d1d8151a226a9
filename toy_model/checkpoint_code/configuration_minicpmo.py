"""Configuration of the toy checkpoint: MiniCPM-o 4.5's keys over transformers' Qwen3 configuration."""

from typing import Any

from transformers import PretrainedConfig, Qwen3Config, SiglipVisionConfig, WhisperConfig


class SliceConfig(PretrainedConfig):
    """How a picture is cut: patch side, most slices, and the side of one slice, in pixels."""

    model_type = "minicpmv"

    def __init__(
        self, patch_size: int = 14, max_slice_nums: int = 9, scale_resolution: int = 140, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.patch_size = patch_size
        self.max_slice_nums = max_slice_nums
        self.scale_resolution = scale_resolution


class MiniCPMOConfig(Qwen3Config):
    """The language model's keys lie at the top level; each encoder has its own section."""

    model_type = "minicpmo"

    def __init__(
        self,
        vision_config: dict[str, Any] | PretrainedConfig | None = None,
        audio_config: dict[str, Any] | PretrainedConfig | None = None,
        slice_config: dict[str, Any] | PretrainedConfig | None = None,
        **kwargs: Any,
    ) -> None:
        self.vision_config = _section(vision_config, SiglipVisionConfig)
        self.audio_config = _section(audio_config, WhisperConfig)
        self.slice_config = _section(slice_config, SliceConfig)
        self.version = kwargs.pop("version", "4.5")
        self.query_num = kwargs.pop("query_num", 64)
        self.image_size = kwargs.pop("image_size", 140)
        self.patch_size = self.vision_config.patch_size
        self.drop_vision_last_layer = kwargs.pop("drop_vision_last_layer", False)
        self.batch_vision_input = kwargs.pop("batch_vision_input", True)
        self.vision_batch_size = kwargs.pop("vision_batch_size", 16)
        self.use_image_id = kwargs.pop("use_image_id", True)
        self.slice_mode = kwargs.pop("slice_mode", True)
        self.audio_pool_step = kwargs.pop("audio_pool_step", 5)
        self.audio_chunk_length = kwargs.pop("audio_chunk_length", 1.0)
        self.stream_input = kwargs.pop("stream_input", False)
        self.init_vision = kwargs.pop("init_vision", True)
        self.init_audio = kwargs.pop("init_audio", True)
        self.init_tts = kwargs.pop("init_tts", False)
        super().__init__(**kwargs)


def _section(
    value: dict[str, Any] | PretrainedConfig | None, cls: type[PretrainedConfig]
) -> PretrainedConfig:
    if isinstance(value, PretrainedConfig):
        return value
    return cls(**(value or {}))
