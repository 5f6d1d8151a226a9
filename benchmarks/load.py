"""Load on one server by ``vllm bench serve``'s own code, in this process.

The console script is not used: it asks for a distribution of the name ``vllm``, which the CPU build is not.
"""

import argparse
import asyncio
import contextlib
import io
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_log: io.TextIOBase | None = None


@dataclass(frozen=True)
class Case:
    """A kind of request, and how many of them are under way at once."""

    kind: str  # "text" or "image"
    at_once: int

    @property
    def name(self) -> str:
        """For tables."""
        return f"{self.kind}, {self.at_once} at once"


def prepare(log: Path) -> None:
    """Send what upstream prints to ``log``, and load it."""
    global _log
    log.parent.mkdir(parents=True, exist_ok=True)
    _log = log.open("w", encoding="utf-8")
    with contextlib.redirect_stdout(_log):
        import vllm.benchmarks.serve  # noqa: F401 -- its loggers keep the stdout they find at import


def run(
    base_url: str, model: str, served_name: str, case: Case, options: argparse.Namespace, seed: int
) -> dict[str, float]:
    """One round of ``options.num_prompts`` requests. Raises RuntimeError when one fails."""
    with contextlib.redirect_stdout(_log):
        from vllm.benchmarks.serve import add_cli_args, main_async
        from vllm.utils.argparse_utils import FlexibleArgumentParser

        parser = FlexibleArgumentParser()
        add_cli_args(parser)
        args = parser.parse_args(arguments(base_url, model, served_name, case, options, seed))
        result: dict[str, Any] = asyncio.run(main_async(args))
    if result["failed"] or result["completed"] != options.num_prompts:
        first = next((error for error in result["errors"] if error), "no reason given")
        raise RuntimeError(f"{case.name}: {result['failed']} requests failed at {base_url}: {first[-500:]}")
    wanted = options.num_prompts * options.output_tokens
    if result["total_output_tokens"] != wanted:
        raise RuntimeError(f"{case.name}: {result['total_output_tokens']} tokens came where {wanted} belong")
    return {
        "requests_per_s": result["request_throughput"],
        "input_tokens": result["total_input_tokens"] / options.num_prompts,
        **{f"{q}_{m}_ms": result[f"{q}_{m}_ms"] for m in ("ttft", "tpot", "e2el") for q in ("median", "p99")},
    }


def arguments(
    base_url: str, model: str, served_name: str, case: Case, options: argparse.Namespace, seed: int
) -> list[str]:
    """The command line of ``vllm bench serve``. No request is sent beforehand: it would fill caches."""
    common = {
        "backend": "openai-chat",
        "endpoint": "/v1/chat/completions",
        "base-url": base_url,
        "model": model,
        "served-model-name": served_name,
        "dataset-name": "random-mm" if case.kind == "image" else "random",
        "num-prompts": options.num_prompts,
        "max-concurrency": case.at_once,
        "seed": seed,
        "random-input-len": options.input_tokens,
        "random-output-len": options.output_tokens,
        "temperature": 0,
        "ready-check-timeout-sec": 0,
        "num-warmups": 0,
        "percentile-metrics": "ttft,tpot,e2el",
        "metric-percentiles": 99,
    }
    if case.kind == "image":
        common["random-mm-bucket-config"] = str({(options.image_side, options.image_side, 1): 1.0})
        common["random-mm-limit-mm-per-prompt"] = '{"image": 1, "video": 0}'
    flags = ["--trust-remote-code", "--disable-tqdm", "--save-detailed"]
    return flags + [word for name, value in common.items() for word in (f"--{name}", str(value))]
