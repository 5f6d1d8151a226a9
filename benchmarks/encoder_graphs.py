"""Measures the encoders on one GPU: upstream eager against ours, eager and in a graph, and the floor.

``python -m benchmarks.encoder_graphs [--json FILE] [--rounds 60]``. Random weights at the real
dimensions, fresh random inputs in rotation, medians after warm-up. One process, one card.
"""

import argparse
import json
import platform
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch

from benchmarks import encoder_plans, random_encoders
from benchmarks.encoder_errors import relative_errors
from benchmarks.encoder_floors import Work, audio_work, tile_work, vision_work
from benchmarks.serving_report import percentiles
from deployments.families.llama4_vision import TileFunction
from deployments.families.minicpmo_audio import AudioFunction
from deployments.families.minicpmo_vision import VisionFunction
from deployments.graphs.cuda import CudaBackend
from deployments.graphs.exact_shape import ExactShapeGraphs
from policies.admission import GraphOptions

DEVICE = "cuda:0"
DTYPE = torch.bfloat16
INPUT_SETS = 4
Inputs = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """One encoder at one shape and batch: how to make inputs, upstream's function and ours."""

    module: str
    batch: int
    make: Callable[[torch.Generator], Inputs]
    upstream: Callable[[Inputs], torch.Tensor]
    ours: Callable[[Inputs], torch.Tensor]
    work: Work
    in_graph: Callable[[], Callable[[Inputs], torch.Tensor]]  # makes an adapter, gives its call


@dataclass(frozen=True)
class Row:
    """What was measured of one case; times in ms, medians with the 10th and 90th percentile."""

    module: str
    batch: int
    upstream_eager_ms: tuple[float, float, float]
    ours_eager_ms: tuple[float, float, float]
    graph_ms: tuple[float, float, float]
    call_ms: tuple[float, float, float]  # wall time a thread is blocked for one adapter call
    launch_ms: float  # host time of a call up to its wait for the device
    gflop: float
    megabytes: float
    floor_ms: float
    speed_up: float
    graph_over_floor: float
    bitwise_equal: bool
    upstream_error: float | None
    our_error: float | None


def cases(minicpmo: Any, llama: Any, batches: tuple[int, ...] = (1, 4, 8)) -> list[Case]:
    """Every case, over two models that share the card."""
    found = []
    for batch in batches:
        found.append(vision_case(minicpmo, batch, (32, 32)))
        found.append(audio_case(minicpmo, batch, 3000, "audio 30 s"))
        found.append(audio_case(minicpmo, batch, 100, "audio 1 s"))
        found.append(tile_case(llama, batch))
    return sorted(found, key=lambda case: case.module)


def vision_case(model: Any, batch: int, grid: tuple[int, int]) -> Case:
    """Slices of one grid through transformer and resampler."""
    function = VisionFunction(model.vpm, model.resampler)
    constants = function.grid_constants(grid)
    patches, sizes = grid[0] * grid[1], torch.tensor([grid] * batch)

    def make(generator: torch.Generator) -> Inputs:
        return {"pixels": _random((batch, 3, 14, 14 * patches), generator), **constants}

    def upstream(inputs: Inputs) -> torch.Tensor:
        return model.get_vision_hidden_states({"pixel_values": list(inputs["pixels"]), "tgt_sizes": sizes})

    work = vision_work(random_encoders.REAL, batch, patches)
    graph = exact_shape(function, batch)
    return Case(f"vision slice, {patches} patches", batch, make, upstream, function, work, graph)


def audio_case(model: Any, batch: int, frames: int, name: str) -> Case:
    """Clips of one length through encoder, projection and pooling."""
    function = AudioFunction.of_model(model)
    lens = torch.full((batch, 1), frames, device=DEVICE)

    def make(generator: torch.Generator) -> Inputs:
        features = _random((batch, 80, frames), generator)
        return {"features": features, "key_lens": lens.flatten().to(torch.int32)}

    def upstream(inputs: Inputs) -> torch.Tensor:
        data = {"audio_features": inputs["features"], "audio_feature_lens": lens}
        return torch.stack(model.get_audio_hidden_states(data))

    work = audio_work(random_encoders.REAL, batch, frames)
    return Case(name, batch, make, upstream, function, work, exact_shape(function, batch))


def tile_case(model: Any, batch: int) -> Case:
    """Llama 4 tiles through vision model and projector."""
    function = TileFunction(model)
    size = random_encoders.REAL.llama_image

    def make(generator: torch.Generator) -> Inputs:
        return {"pixel_values": _random((batch, 3, size, size), generator)}

    def upstream(inputs: Inputs) -> torch.Tensor:
        states = model.vision_model(images_flattened=inputs["pixel_values"])
        return model.multi_modal_projector(states).flatten(0, 1)

    def ours(inputs: Inputs) -> torch.Tensor:
        return function(inputs["pixel_values"])

    def in_graph() -> Callable[[Inputs], torch.Tensor]:
        adapter = encoder_plans.budget_adapter(model, (batch,))
        counts = torch.full((batch,), 1)
        return lambda inputs: torch.cat(adapter.encode({**inputs, "patches_per_image": counts}))

    ours.function = function  # type: ignore[attr-defined]
    work = tile_work(random_encoders.REAL, batch)
    return Case("Llama 4 tile", batch, make, upstream, ours, work, in_graph)


def exact_shape(function: Any, batch: int) -> Callable[[], Callable[[Inputs], torch.Tensor]]:
    """An exact-shape adapter for batches of this size, warmed up by its callers."""

    def in_graph() -> Callable[[Inputs], torch.Tensor]:
        options = GraphOptions(graph_batch_sizes=(batch,), min_free_bytes=0)
        adapter = ExactShapeGraphs("bench", function, options, CudaBackend(DEVICE))
        return lambda inputs: adapter(inputs, batch_size=batch)

    return in_graph


def measure(case: Case, rounds: int, reference: bool) -> Row:
    """All columns of one row."""
    generator = torch.Generator(DEVICE).manual_seed(case.batch)
    sets = [case.make(generator) for _ in range(INPUT_SETS)]
    call = case.in_graph()
    for inputs in sets[:2]:
        call(inputs)
    equal = all(torch.equal(call(inputs), case.ours(inputs)) for inputs in sets)
    upstream_ms = device_times(case.upstream, sets, rounds)
    graph_ms = device_times(call, sets, rounds)
    errors = relative_errors(case.upstream, case.ours, sets[0]) if reference else (None, None)
    floor_ms = case.work.floor_ms
    return Row(
        module=case.module,
        batch=case.batch,
        upstream_eager_ms=upstream_ms,
        ours_eager_ms=device_times(case.ours, sets, rounds),
        graph_ms=graph_ms,
        call_ms=wall_times(call, sets, rounds),
        launch_ms=launch_time(call, sets, rounds),
        gflop=case.work.flops / 1e9,
        megabytes=case.work.bytes / 1e6,
        floor_ms=floor_ms,
        speed_up=upstream_ms[0] / graph_ms[0],
        graph_over_floor=graph_ms[0] / floor_ms,
        bitwise_equal=equal,
        upstream_error=errors[0],
        our_error=errors[1],
    )


def device_times(
    function: Callable[[Inputs], Any], sets: list[Inputs], rounds: int
) -> tuple[float, float, float]:
    """Median, 10th and 90th percentile in ms, by device events around each call."""
    times = []
    for index in range(rounds + 10):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda.synchronize()
        begin.record()
        function(sets[index % len(sets)])
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end))
    return percentiles(times[10:])


def wall_times(
    function: Callable[[Inputs], Any], sets: list[Inputs], rounds: int
) -> tuple[float, float, float]:
    """Median, 10th and 90th percentile in ms, by the host's clock, the device idle before each call."""
    times = []
    for index in range(rounds):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        function(sets[index % len(sets)])
        times.append((time.perf_counter() - begin) * 1e3)
    return percentiles(times)


def launch_time(function: Callable[[Inputs], Any], sets: list[Inputs], rounds: int) -> float:
    """Median host time in ms of a call that does not wait for the device."""
    wait = torch.cuda.Stream.synchronize
    torch.cuda.Stream.synchronize = lambda stream: None  # type: ignore[method-assign]
    try:
        return wall_times(function, sets, rounds)[0]
    finally:
        torch.cuda.Stream.synchronize = wait  # type: ignore[method-assign]


def _random(shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    return torch.randn(shape, generator=generator, device=DEVICE).to(DTYPE)


def print_table(rows: list[Row]) -> None:
    """One line a case."""
    heads = (
        "| module | batch | upstream eager, ms | ours eager, ms | graph, ms (p10 to p90) "
        "| thread blocked, ms | launch, ms | GFLOP | MB | floor, ms | speed-up "
        "| graph / floor | bitwise | error upstream | ours |"
    )
    print(heads)
    print("|" + "---|" * (heads.count("|") - 1))
    for row in rows:
        errors = ("", "") if row.our_error is None else (f"{row.upstream_error:.4f}", f"{row.our_error:.4f}")
        graph = f"{row.graph_ms[0]:.2f} ({row.graph_ms[1]:.2f} to {row.graph_ms[2]:.2f})"
        print(
            f"| {row.module} | {row.batch} | {row.upstream_eager_ms[0]:.2f} | {row.ours_eager_ms[0]:.2f} "
            f"| {graph} | {row.call_ms[0]:.2f} | {row.launch_ms:.2f} | {row.gflop:.0f} | {row.megabytes:.0f} "
            f"| {row.floor_ms:.2f} | {row.speed_up:.1f} | {row.graph_over_floor:.2f} "
            f"| {'yes' if row.bitwise_equal else 'NO'} | {errors[0]} | {errors[1]} |"
        )


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json")
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--no-reference", action="store_true", help="skip the float32 runs on the CPU")
    args = parser.parse_args()
    with random_encoders.vllm_world():
        minicpmo = random_encoders.minicpmo(random_encoders.REAL, DTYPE, DEVICE)
        llama = random_encoders.llama4(random_encoders.REAL, DTYPE, DEVICE)
        rows = [
            measure(case, args.rounds, reference=case.batch == 1 and not args.no_reference)
            for case in cases(minicpmo, llama)
        ]
        print_table(rows)
        more = {
            "items": encoder_plans.item_rows(minicpmo, args.rounds, wall_times),
            "packing": encoder_plans.packing_rows(llama, args.rounds, wall_times),
            "pools": encoder_plans.pool_rows(minicpmo),
        }
    for name, table in more.items():
        print(f"\n{name}")
        encoder_plans.print_rows(table)
    if args.json:
        import vllm

        about = {
            "card": torch.cuda.get_device_name(),
            "torch": torch.__version__,
            "vllm": vllm.__version__,
            "python": platform.python_version(),
            "date": time.strftime("%Y-%m-%d"),
            "rounds": args.rounds,
        }
        with open(args.json, "w") as file:
            json.dump({"about": about, "rows": [asdict(row) for row in rows], **more}, file, indent=1)


if __name__ == "__main__":
    main()
