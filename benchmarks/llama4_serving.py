"""Llama 4 in ``benchmarks.serving``: vLLM's encoder graphs off and on beside GraphServe's, and the targets.

The published claim is of vLLM's graphs inside one engine; its own two rows here check it on this machine.
"""

from pathlib import Path

from benchmarks import llama4_replicas, real_llama4
from benchmarks.contenders import GPU_ENV, GRAPHS_OFF, GRAPHS_ON, Contender, Setup
from benchmarks.load import Case, Kind, Lengths
from benchmarks.random_encoders import REAL
from benchmarks.serving_plan import Plan
from benchmarks.serving_report import Target
from tests.servers import ENGINE
from tiny_models import folders, llama4

VLLM_OFF, VLLM_ON = "vLLM, encoder graphs off", "vLLM, encoder graphs on"
TILES = {"one tile": 1, "four tiles": 4}
"""Pictures by name; of four tiles three are cut from the picture and one is the whole, made smaller."""
FASTER, SOONER = 1.22, 0.65
"""The published ratios of graphs on to off: requests a second, and the median time to the first token."""

# Without torch.compile, which takes longer than all else of a start and gains a language model of one layer
# nothing; its decode steps are captured as they are. GraphServe reads the encoder's graphs from elsewhere.
COMPILATION = {"mode": "NONE", "cudagraph_mode": "FULL_DECODE_ONLY"}


def on_cpu() -> Setup:
    """The tiny Llama 4 on this machine's processor: to try the program; measures nothing of use."""
    return Setup(
        model=str(folders.ensure("llama4")), served_name="tiny-llama4", dtype="float32", engine=ENGINE,
        eager=True, config="configs/llama4-tiny.yaml", api_servers=1, encoders=("vision",),
        about={"model": "tiny Llama 4"},
    )  # fmt: skip


def on_gpu(folder: Path, *, dense: bool) -> Setup:
    """The real encoder, random weights, bfloat16; configs/llama4-scout.yaml with all of it on one GPU."""
    engine = {
        "load_format": "dummy",
        "max_model_len": real_llama4.MAX_LENGTH,
        "max_num_seqs": 64,
        "max_num_batched_tokens": 8192,
        "gpu_memory_utilization": 0.12,  # must be free at start; nothing else, for the next is given
        "kv_cache_memory_bytes": 1 << 30,  # 260,000 tokens of one layer
        "tensor_parallel_size": 1,
        "distributed_executor_backend": "uni",
        "compilation_config": COMPILATION,
    }
    shares = {"VisionEncoder": 0.4, "Decoder": 0.5}
    return Setup(
        model=str(real_llama4.ensure(folder / "llama4-random", dense=dense)), served_name="llama4-random",
        dtype="bfloat16", engine=engine, eager=False, config="configs/llama4-scout.yaml", api_servers=1,
        env=GPU_ENV, encoders=("vision",),
        deployments={of: {"ray_actor_options": {"num_cpus": 0, "num_gpus": n}} for of, n in shares.items()},
        about={"model": "Llama 4", "language_model": real_llama4.language_model(dense=dense)},
    )  # fmt: skip


def contenders(setup: Setup) -> dict[str, Contender]:
    """Everyone who takes part, by name."""
    graphs = {**setup.engine.get("compilation_config", {}), "cudagraph_mm_encoder": True}
    every = [
        Contender(VLLM_OFF, setup, graphs=False),
        Contender(VLLM_ON, setup, options={"compilation_config": graphs}),
        Contender(GRAPHS_OFF, setup, config=setup.config, graphs=False),
        Contender(GRAPHS_ON, setup, config=setup.config, start_after_s=15.0),
    ]
    return {contender.name: contender for contender in every}


def plan(*, real: bool) -> Plan:
    """What is measured. Short answers: decode steps of one layer say nothing, and hide the encoder."""
    side = REAL.llama_image if real else llama4.TILE_SIDE
    kinds = [Kind(name, _size_px(tiles, side)) for name, tiles in TILES.items()]

    def case(kind: Kind, requests: int, at_once: int) -> Case:
        return Case(kind, requests if real else max(2, requests // 8), at_once)

    core = [case(kind, *how) for kind in kinds for how in ((12, 1), (48, 8))]
    return Plan(
        core=core,
        more=[case(kind, 96, 32) for kind in kinds],
        lengths=Lengths(tokens_in=100, tokens_out=16) if real else Lengths(tokens_in=16, tokens_out=8),
        targets=targets(core),
        staged=kinds,
        pairs=[(GRAPHS_ON, GRAPHS_OFF), (VLLM_ON, VLLM_OFF)],
    )


def targets(cases: list[Case]) -> list[Target]:
    """The published ratios, for GraphServe, and for vLLM itself."""
    return [
        target
        for case in cases
        for on, off in ((GRAPHS_ON, GRAPHS_OFF), (VLLM_ON, VLLM_OFF))
        for target in (
            Target(case.name, "requests_per_s", on, (off,), at_least=FASTER),
            Target(case.name, "median_ttft_ms", on, (off,), at_most=SOONER),
        )
    ]


def _size_px(tiles: int, side: int) -> tuple[int, int]:
    width, height = llama4_replicas.size_of(tiles, tile_side=side, max_tiles=llama4.MAX_TILES)
    return height, width
