"""The GPU half of Llama 4's vision encoder: any images in one batch, upstream packs them into budgets."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from deployments.families.base import EncoderInputs
from deployments.families.llama4_vision import TileFunction
from deployments.families.minicpmo_gpu import stack_to_device
from deployments.graphs.budget import BudgetEncoderGraphs
from deployments.graphs.cuda import CudaBackend
from policies.admission import BudgetOptions
from policies.budgets import default_budgets

LAUNCH_BOUND_TILES = 5
"""Up to this many tiles an eager run takes as long as one, for the host is the slower (H200)."""

FIXED_TILES = 0.5
"""What a replay costs beside its tiles, in tiles: small ones do not fill the card (H200)."""


def vision_core(model: Any, options: BudgetOptions, device: torch.device | str) -> "VisionCore":
    """The vision half of a loaded model; ``core.adapter.start()`` captures its budgets.

    The adapter also sits at ``_encoder_graph`` of the model and its vision model.
    """
    from deployments.upstream.encoder_graphs import BudgetGraphs, manager_config

    device = torch.device(device)
    function = TileFunction(model)
    chunk_tokens = int(model.get_image_patches_per_chunk())
    largest = options.decoder_tokens or _own_limit(model)
    config = manager_config(
        token_budgets=list(options.token_budgets) or default_budgets(chunk_tokens, largest),
        max_items=options.max_items_per_batch,
        max_frames=options.max_frames_per_batch,
        max_num_batched_tokens=largest,
        max_model_len=largest,
    )

    def forward(inputs: Any) -> torch.Tensor:
        return function(inputs["pixel_values"])

    adapter = BudgetEncoderGraphs(
        "vision",
        options,
        CudaBackend(device),
        lambda may_capture: BudgetGraphs(model, forward, config, device, function.dtype, may_capture),
        launch_bound_tokens=LAUNCH_BOUND_TILES * chunk_tokens,
        fixed_tokens=FIXED_TILES * chunk_tokens,
    )
    return VisionCore(model, adapter, function)


def _own_limit(model: Any) -> int:
    """The encoder process's own limits, for want of the decoder's."""
    config = model.vllm_config
    return min(config.scheduler_config.max_num_batched_tokens, config.model_config.max_model_len)


class VisionCore:
    """Tiles of all images in one batch; the number of tiles may differ, for no tile sees another."""

    def __init__(self, model: Any, adapter: BudgetEncoderGraphs, function: TileFunction) -> None:
        self.adapter = adapter
        self.function = function
        model._encoder_graph = adapter
        model.vision_model._encoder_graph = adapter

    def encode(self, batch: Sequence[EncoderInputs]) -> list[torch.Tensor]:
        """Encode images; returns (tiles * patches, hidden) per image, in the model's dtype."""
        self.adapter.start()
        tiles = [np.asarray(item.arrays["pixel_values"]) for item in batch]
        return self.adapter.encode(
            {
                "pixel_values": stack_to_device(tiles, self.function.device, self.function.dtype, join=True),
                "patches_per_image": torch.tensor([len(image) for image in tiles]),
            }
        )
