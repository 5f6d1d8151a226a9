"""The servers that ``benchmarks.serving`` compares: how each is configured, checked and started.

All of them share the card, so each gets its key-value cache in bytes: vLLM's own share of the whole card is
measured at start, when the others are starting too.
"""

import contextlib
import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from benchmarks import real_model
from tests.servers import ENGINE, Server, app_config, running_app, running_undivided
from toy_model.write import ensure

DEFAULTS, TUNED = "vLLM", "vLLM tuned"
GRAPHS_OFF, GRAPHS_ON = "GraphServe, graphs off", "GraphServe, graphs on"
WITH_MPS = "GraphServe, graphs on, MPS"
TWO_REPLICAS, TWO_GPUS = "vLLM, two replicas", "GraphServe, two GPUs"
RAY_ENV: dict[str, str | None] = {
    "RAY_AUTH_MODE": "disabled",  # so that benchmarks.stages may call the encoders
    "RAY_memory_monitor_refresh_ms": "0",  # a virtual machine's memory may start small and grow
}
GPU_ENV: dict[str, str | None] = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": None,
    "OMP_NUM_THREADS": None,
    "VLLM_CPU_KVCACHE_SPACE": None,
}
"""Variables of tests/servers.py that are for the CPU: on a GPU upstream's own defaults hold."""
CAPTURED_TOKENS = 1024
"""Of prefill, at most, in the decode graphs of the tuned contenders; our configs say the same."""
UPSTREAM_CAPTURED = re.compile(r"Encoder CUDA graph capture complete\. Captured (\d+) graphs")
"""What upstream's engine logs; it counts hits only where nobody sees them."""


@dataclass(frozen=True)
class Setup:
    """What all contenders of a run share."""

    model: str
    served_name: str
    dtype: str
    engine: dict[str, Any]  # arguments of vLLM by their Python names, equal for all
    eager: bool
    config: str  # of ours, a file of the repository
    api_servers: int  # of the tuned contenders
    env: dict[str, str | None] = field(default_factory=dict)
    encoders: tuple[str, ...] = ("vision", "audio")
    deployments: dict[str, Any] = field(default_factory=dict)  # what differs from the config's, by name
    about: dict[str, Any] = field(default_factory=dict)  # what else two runs must share to add to each other


@dataclass(frozen=True)
class Contender:
    """A server by name, and what it is given beside the setup."""

    name: str
    setup: Setup
    config: str | None = None  # ours: the config file; None: vLLM undivided
    graphs: bool = True
    options: dict[str, Any] = field(default_factory=dict)  # vLLM's own
    mps: bool = False  # its processes share the GPU by NVIDIA's Multi-Process Service
    env: dict[str, str | None] = field(default_factory=dict)  # beside the setup's
    start_after_s: float = 0.0  # two Ray clusters must not look for free ports at the same moment

    def engine(self) -> dict[str, Any]:
        """Options of the undivided server."""
        return {**self.setup.engine, **self.options}

    def args(self) -> dict[str, Any]:
        """Arguments of our application that differ from its config file."""
        assert self.config is not None
        there = app_config(0, source=self.config)["applications"][0]["args"]
        engine = dict(self.setup.engine)
        load_format = engine.pop("load_format", "auto")
        decoder = there.get("decoder", {})
        graphs = there.get("graphs", {})
        return {
            "model": self.setup.model,
            "served_model_name": self.setup.served_name,
            "dtype": self.setup.dtype,
            "trust_remote_code": True,
            "load_format": load_format,
            "graphs": {e: {**graphs.get(e, {}), "enabled": self.graphs} for e in self.setup.encoders},
            "decoder": {**decoder, "engine_args": {**decoder.get("engine_args", {}), **engine}},
        }

    def running(self, folder: Path, timeout_s: float) -> "contextlib.AbstractContextManager[Server]":
        """The started server, as a context."""
        setup = self.setup
        home = folder / self.name.replace(" ", "-").replace(",", "")
        home.mkdir(parents=True, exist_ok=True)
        # A compile cache of its own: they compile at the same time.
        env = {**setup.env, **self.env, "VLLM_CACHE_ROOT": str(folder.parent / "vllm-cache" / home.name)}
        if self.config is not None:
            return running_app(
                home, self.args(), setup.deployments, env={**env, **RAY_ENV}, timeout_s=timeout_s,
                source=self.config,
            )  # fmt: skip
        return running_undivided(
            home, setup.model, setup.dtype, setup.served_name, timeout_s, self.engine(),
            eager=setup.eager, module="benchmarks.vllm_serve", command=("serve",), env=env,
        )  # fmt: skip

    def encoder_graphs(self, server: Server) -> dict[str, Any] | None:
        """How many encoder graphs the server holds, and their hits if it counts them; None: none wanted."""
        if self.config is not None:
            if not self.graphs:
                return None
            report = httpx.get(f"{server.base_url}/v1/graphs", timeout=20, trust_env=False).json()
            totals = report["totals"].values()
            return {
                "held": sum(of["num_graphs"] for of in totals),
                "hits": sum(of["graph_hits"] for of in totals),
            }
        if not self.engine().get("compilation_config", {}).get("cudagraph_mm_encoder"):
            return None
        captured = UPSTREAM_CAPTURED.findall(server.log.read_text(errors="replace"))
        return {"held": sum(map(int, captured)), "hits": None}

    def check(self) -> str:
        """Resolve the configuration as the server would, without starting it. Raises what upstream raises."""
        from vllm.engine.arg_utils import AsyncEngineArgs

        from deployments.upstream.engine import serve_arguments

        if self.config is None:
            options = {
                "model": self.setup.model, "dtype": self.setup.dtype, "trust_remote_code": True,
                "enforce_eager": self.setup.eager, **self.engine(),
            }  # fmt: skip
        else:
            options = self._checked_application()
        config = AsyncEngineArgs.from_cli_args(serve_arguments(options)).create_engine_config()
        scheduler = config.scheduler_config
        return (
            f"{self.name}: {scheduler.max_num_seqs} sequences, {scheduler.max_num_batched_tokens} batched "
            f"tokens, chunked prefill {scheduler.enable_chunked_prefill}, "
            f"{config.parallel_config.data_parallel_size} data-parallel, "
            f"key-value cache {config.cache_config.kv_cache_memory_bytes} bytes, "
            f"encoder graphs in the engine {config.compilation_config.cudagraph_mm_encoder}"
        )

    def _checked_application(self) -> dict[str, Any]:
        from app.build import build, decoder_options
        from app.config import AppConfig
        from deployments.decoder import engine_options
        from deployments.families.registry import load_family

        changed = app_config(0, self.args(), self.setup.deployments, source=str(self.config))
        config = changed["applications"][0]["args"]
        checked = AppConfig(**config)
        build(checked)
        return engine_options(
            decoder_options(checked, self.setup.served_name), load_family(self.setup.model, None)
        )


def on_cpu() -> Setup:
    """The toy on this machine's processor: shows that everything works, and measures nothing of use."""
    return Setup(
        model=str(ensure()), served_name="graphserve-toy", dtype="float32", engine=ENGINE, eager=True,
        config="serve_config.yaml", api_servers=2,
    )  # fmt: skip


def on_gpu(folder: Path, cores: int) -> Setup:
    """MiniCPM-o 4.5's real dimensions, random weights, bfloat16."""
    engine = {
        "load_format": "dummy",
        "max_model_len": 8192,
        "max_num_seqs": 64,
        "max_num_batched_tokens": 8192,
        "gpu_memory_utilization": 0.12,  # must be free at start; nothing else, for the next is given
        "kv_cache_memory_bytes": 6 << 30,
    }
    return Setup(
        model=str(real_model.ensure(folder / "minicpmo-4_5-random")), served_name="minicpmo-random",
        dtype="bfloat16", engine=engine, eager=False, config="configs/minicpmo-4_5-one-gpu.yaml",
        api_servers=max(2, cores // 2), env=GPU_ENV,
    )  # fmt: skip


def contenders(setup: Setup, gpus: int = 1) -> dict[str, Contender]:
    """Everyone who takes part, by name; with two GPUs the two that share the work over both."""
    tuned: dict[str, Any] = {"api_server_count": setup.api_servers, "mm_processor_cache_gb": 0}
    if not setup.eager:
        tuned["compilation_config"] = {"max_cudagraph_capture_size": CAPTURED_TOKENS}
    if gpus == 2:
        on_two = "configs/minicpmo-4_5-two-gpus.yaml" if setup.env else setup.config
        both = [
            Contender(TWO_REPLICAS, setup, options={**tuned, "data_parallel_size": 2}),
            Contender(TWO_GPUS, setup, config=on_two),
        ]
    else:
        both = [
            Contender(DEFAULTS, setup),
            Contender(TUNED, setup, options=tuned),
            Contender(GRAPHS_OFF, setup, config=setup.config, graphs=False),
            Contender(GRAPHS_ON, setup, config=setup.config, start_after_s=15.0),
            Contender(WITH_MPS, setup, config=setup.config, mps=True, start_after_s=30.0),
        ]
    return {contender.name: contender for contender in both}


def cores() -> int:
    """Processor cores that this process may use."""
    return len(os.sched_getaffinity(0))
