"""Upstream's own multimodal processor, for CPU worker processes: one medium in, its tensors out."""

from typing import Any

import numpy as np
import torch


class UpstreamProcessor:
    """Runs the checkpoint's processor exactly as an undivided vLLM would, on one item at a time."""

    def __init__(self, vllm_config: Any, modality: str) -> None:
        from vllm.multimodal import MULTIMODAL_REGISTRY

        self.modality = modality
        self.processor = MULTIMODAL_REGISTRY.create_processor(vllm_config.model_config)
        info = self.processor.info
        text = self.processor.dummy_inputs.get_dummy_text({modality: 1})
        self.prompt = info.get_tokenizer().encode(text, add_special_tokens=False)

    def __call__(self, medium: Any) -> tuple[dict[str, Any], int]:
        """Process one decoded medium.

        Args:
            medium: an RGB PIL image, or float32 mono samples at the model's rate.

        Returns:
            The item's keyword arguments for the model (tensors, or lists of tensors where upstream
            has lists), and the number of embedding tokens its placeholder takes.
        """
        from vllm.multimodal.processing.context import TimingContext
        from vllm.multimodal.processing.inputs import ProcessorInputs

        items = self.processor.info.parse_mm_data({self.modality: [medium]})
        inputs = ProcessorInputs(prompt=self.prompt, mm_data_items=items)
        result = self.processor.apply(inputs, TimingContext(enabled=False))
        item = result["mm_kwargs"][self.modality][0]
        placeholder = result["mm_placeholders"][self.modality][0]
        return dict(item.get_data()), int(placeholder.get_num_embeds())


def to_numpy(value: Any) -> Any:
    """Tensors become arrays, also inside lists; bfloat16 travels as float32."""
    if isinstance(value, torch.Tensor):
        return (value.float() if value.dtype == torch.bfloat16 else value).contiguous().numpy()
    if isinstance(value, (list, tuple)):
        return [to_numpy(v) for v in value]
    return np.asarray(value)
