"""Measures what depends on shapes and plans: whole items through the cores, packing, pools.

Part of ``python -m benchmarks.encoder_graphs``, which prints and writes its tables.
"""

import gc
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch

from deployments.families import llama4_gpu, minicpmo_gpu
from deployments.families.base import EncoderInputs
from deployments.families.llama4_vision import TileFunction
from deployments.graphs.budget import BudgetEncoderGraphs
from deployments.graphs.cuda import CudaBackend
from deployments.upstream.encoder_graphs import BudgetGraphs, manager_config
from policies.admission import BudgetOptions, GraphOptions
from policies.budgets import default_budgets, plan

DEVICE = "cuda:0"
CHUNK = 144
RNG = np.random.default_rng(0)
Row = dict[str, Any]
Timer = Callable[[Callable[[Any], Any], list[Any], int], tuple[float, float, float]]


def image(*grids: tuple[int, int]) -> EncoderInputs:
    """Random slices of these patch grids."""
    pixels = [RNG.standard_normal((3, 14, h * w * 14), dtype=np.float32) for h, w in grids]
    arrays: dict[str, Any] = {"pixel_values": pixels, "tgt_sizes": np.array(grids)}
    return EncoderInputs(arrays, str(grids), 64 * len(grids), {})


def clip(*frames: int) -> EncoderInputs:
    """Random mel chunks of these lengths."""
    features = [RNG.standard_normal((80, n), dtype=np.float32) for n in frames]
    arrays: dict[str, Any] = {"audio_features": features, "audio_feature_lens": np.array(frames)}
    return EncoderInputs(arrays, str(frames), 0, {})


def item_rows(model: Any, rounds: int, wall_times: Timer) -> list[Row]:
    """One whole item from host arrays to embeddings on the device: upstream, ours eager, ours in graphs."""
    rows = []
    sliced = [(28, 36), *[(26, 39)] * 9]
    for name, make, is_image in (
        ("image of 1 slice", lambda: image((32, 32)), True),
        ("image of 9 slices and overview", lambda: image(*sliced), True),
        ("audio 5 s", lambda: clip(500), False),
        ("audio 40 s", lambda: clip(3000, 1000), False),
    ):
        row: Row = {"item": name}
        items = [make() for _ in range(3)]
        upstream = _upstream_image if is_image else _upstream_clip
        row["upstream_ms"] = wall_times(_waiting(partial(upstream, model)), items, rounds)
        core_of = minicpmo_gpu.vision_core if is_image else minicpmo_gpu.audio_core
        for column, enabled in (("ours_eager_ms", False), ("ours_graph_ms", True)):
            core = core_of(model, GraphOptions(enabled=enabled, min_free_bytes=0), DEVICE)
            for item in items:
                core.encode([item])
            row[column] = wall_times(_waiting(lambda item, c=core: c.encode([item])), items, rounds)
            row["graph_hit_rate"] = round(core.adapter.stats().hit_rate, 2)
        rows.append(row)
    return rows


def packing_rows(model: Any, rounds: int, wall_times: Timer) -> list[Row]:
    """Batches of tiles under good and bad lists of budgets, with and without the judgement of the plan."""
    lists = {
        "default": default_budgets(CHUNK, 32 * CHUNK),
        "2 missing": [CHUNK * n for n in (1, 4, 8)],
        "powers of two": [CHUNK * n for n in (1, 2, 4, 8, 16, 32)],
    }
    rows = []
    for name, budgets in lists.items():
        blind = budget_adapter(model, [b // CHUNK for b in budgets], launch_bound_tokens=1e9)
        judged = budget_adapter(model, [b // CHUNK for b in budgets])
        for counts in ((1,) * 8, (17,), (3, 5), (3,)):
            pixels = torch.randn(sum(counts), 3, 336, 336, device=DEVICE).bfloat16()
            batch = {"pixel_values": pixels, "patches_per_image": torch.tensor(counts)}
            packed = plan([CHUNK * n for n in counts], budgets, 56)
            row: Row = {"budgets": name, "tiles": "+".join(map(str, counts))}
            row["replays"] = len(packed.replayed_budgets)
            row["padding"] = round(sum(packed.replayed_budgets) / (CHUNK * sum(counts)) - 1, 2)
            row["eager_ms"] = wall_times(_waiting(blind.manager.run_eagerly), [batch], rounds)
            row["always_graph_ms"] = wall_times(_waiting(blind.encode), [batch], rounds)
            row["judged_ms"] = wall_times(_waiting(judged.encode), [batch], rounds)
            rows.append(row)
    return rows


def pool_rows(model: Any) -> list[Row]:
    """Bytes and capture times of four vision graphs in pools of their own and in a shared one."""
    grids = [(32, 32), (30, 34), (28, 36), (26, 38)]
    rows = []
    for share in (False, True):
        model.vpm._encoder_graph = None
        core = minicpmo_gpu.vision_core(model, GraphOptions(min_free_bytes=0, share_pools=share), DEVICE)
        items = [image(grid) for grid in grids]
        for item in items:
            core.encode([item])
        before, times = _free(), []
        for item in items:
            begin = time.perf_counter()
            core.encode([item])
            times.append(round((time.perf_counter() - begin) * 1e3))
        rows.append({"share_pools": share, "mib": (before - _free()) >> 20, "capture_ms": times})
        del core
    return rows


def budget_adapter(
    model: Any, counts: Sequence[int], launch_bound_tokens: float = llama4_gpu.LAUNCH_BOUND_TILES * CHUNK
) -> BudgetEncoderGraphs:
    """A started adapter with budgets of these many tiles."""
    function = TileFunction(model)
    config = manager_config(
        token_budgets=[CHUNK * n for n in counts], max_num_batched_tokens=8192, max_model_len=8192
    )

    def forward(inputs: dict[str, Any]) -> torch.Tensor:
        return function(inputs["pixel_values"])

    adapter = BudgetEncoderGraphs(
        "vision", BudgetOptions(min_free_bytes=0), CudaBackend(DEVICE),
        lambda may: BudgetGraphs(model, forward, config, torch.device(DEVICE), torch.bfloat16, may),
        launch_bound_tokens=launch_bound_tokens, fixed_tokens=llama4_gpu.FIXED_TILES * CHUNK,
    )  # fmt: skip
    adapter.start()
    return adapter


def print_rows(rows: list[Row]) -> None:
    """A table; spreads as their median."""
    print("| " + " | ".join(rows[0]) + " |")
    print("|" + "---|" * len(rows[0]))
    for row in rows:
        cells = (f"{v[0]:.2f}" if isinstance(v, tuple) else str(v) for v in row.values())
        print("| " + " | ".join(cells) + " |")


def _upstream_image(model: Any, item: EncoderInputs) -> Any:
    dtype = model.vpm.embeddings.position_embedding.weight.dtype
    pixels = [torch.from_numpy(p).to(dtype).to(DEVICE) for p in item.arrays["pixel_values"]]
    sizes = torch.from_numpy(np.asarray(item.arrays["tgt_sizes"]))
    return model.embed_multimodal(pixel_values=[pixels], tgt_sizes=[sizes])


def _upstream_clip(model: Any, item: EncoderInputs) -> Any:
    dtype = model.apm.conv1.weight.dtype
    features = [torch.from_numpy(f).to(dtype).to(DEVICE) for f in item.arrays["audio_features"]]
    lens = torch.from_numpy(np.asarray(item.arrays["audio_feature_lens"])).to(DEVICE)
    return model.embed_multimodal(audio_features=features, audio_feature_lens=[lens])


def _waiting(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """The function, and then the device's end."""

    def call(argument: Any) -> None:
        function(argument)
        torch.cuda.synchronize()

    return call


def _free() -> int:
    gc.collect()
    torch.cuda.empty_cache()
    return torch.cuda.mem_get_info()[0]
