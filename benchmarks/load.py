"""Load on one server by ``vllm bench serve``'s own code, in this process.

The console script is not used: it asks for a distribution of the name ``vllm``, which the CPU build is not,
and it knows no audio and no mixture. Requests are made beforehand, so that servers can be sent the same.
"""

import asyncio
import base64
import contextlib
import functools
import io
import math
import wave
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

MODEL_RATE_HZ = 16_000

_log: io.TextIOBase | None = None


@dataclass(frozen=True)
class Kind:
    """A kind of request: text, and with it at most one medium, which is new noise in every request."""

    name: str
    image_px: tuple[int, int] | None = None  # height, width
    audio_s: float | None = None
    every_second_text: bool = False  # the first of two has no medium


@dataclass(frozen=True)
class Case:
    """A kind of request, how many of them, and how they come: so many at once, or at a rate set later."""

    kind: Kind
    requests: int
    at_once: int | None = None
    rate_per_s: float | None = None

    @property
    def name(self) -> str:
        """For tables; the rate itself is not in it, so that runs of different rates are one case."""
        how = "at a rate" if self.at_once is None else f"{self.at_once} at once"
        return f"{self.kind.name}, {how}"


@dataclass(frozen=True)
class Lengths:
    """Tokens of the text in, and of every answer."""

    tokens_in: int
    tokens_out: int


@dataclass(frozen=True)
class Target:
    """A server as the client sees it."""

    base_url: str
    model: str  # the folder with the tokenizer
    served_name: str


@dataclass(frozen=True)
class Bounds:
    """What a good answer keeps to."""

    ttft_ms: float = 1000.0
    tpot_ms: float = 50.0


def prepare(log: Path) -> None:
    """Send what upstream prints to ``log``, and load it."""
    global _log
    log.parent.mkdir(parents=True, exist_ok=True)
    _log = log.open("a", encoding="utf-8")
    with contextlib.redirect_stdout(_log):
        import vllm.benchmarks.serve  # noqa: F401 -- its loggers keep the stdout they find at import


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """What upstream prints meanwhile goes to the log. For the whole process: threads may work within."""
    with contextlib.redirect_stdout(_log or io.StringIO()):
        yield


def make_requests(model: str, kind: Kind, count: int, lengths: Lengths, seed: int) -> list[Any]:
    """``count`` requests (upstream's SampleRequest); equal arguments give equal requests."""
    if kind.every_second_text:
        alone = Kind(kind.name, kind.image_px, kind.audio_s)
        halves = [
            make_requests(model, of, math.ceil(count / 2), lengths, seed + n)
            for n, of in ((0, Kind("text")), (50_000, alone))
        ]
        return [request for pair in zip(*halves, strict=True) for request in pair][:count]
    from vllm.benchmarks.datasets import RandomDataset, RandomMultiModalDataset

    tokenizer = _tokenizer(model)
    common = {"num_requests": count, "input_len": lengths.tokens_in, "output_len": lengths.tokens_out}
    if kind.image_px is not None:
        limits = {"limit_mm_per_prompt": {"image": 1, "video": 0}}
        bucket = {"bucket_config": {(*kind.image_px, 1): 1.0}}
        pictures = RandomMultiModalDataset(random_seed=seed)
        return list(pictures.sample(tokenizer=tokenizer, **common, **limits, **bucket))
    requests = list(RandomDataset(random_seed=seed).sample(tokenizer=tokenizer, **common))
    if kind.audio_s is not None:
        for number, request in enumerate(requests):
            data = base64.b64encode(clip(1000 * seed + number, kind.audio_s)).decode()
            request.multi_modal_data = {
                "type": "input_audio",
                "input_audio": {"data": data, "format": "wav"},
            }
    return requests


def clip(seed: int, seconds: float) -> bytes:
    """A WAV file of new noise."""
    count = round(seconds * MODEL_RATE_HZ)
    samples = np.random.default_rng(seed).integers(-8000, 8000, count, dtype=np.int16)
    buffer = io.BytesIO()
    with wave.open(buffer, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(MODEL_RATE_HZ)
        file.writeframes(samples.tobytes())
    return buffer.getvalue()


def run(
    target: Target, case: Case, requests: Sequence[Any], lengths: Lengths, bounds: Bounds, seed: int
) -> dict[str, Any]:
    """Send the requests and wait for the last answer. Raises RuntimeError when one fails."""
    np.random.seed(seed)  # upstream draws the moments of arrival from it
    result = asyncio.run(_send(target, case, list(requests), bounds))
    if result["failed"] or result["completed"] != len(requests):
        first = next((error for error in result["errors"] if error), "no reason given")
        raise RuntimeError(f"{case.name}: {result['failed']} requests failed at {target}: {first[-500:]}")
    wanted = len(requests) * lengths.tokens_out
    if result["total_output_tokens"] != wanted:
        raise RuntimeError(f"{case.name}: {result['total_output_tokens']} tokens came where {wanted} belong")
    return figures(result, case.kind.every_second_text)


async def _send(target: Target, case: Case, requests: list[Any], bounds: Bounds) -> dict[str, Any]:
    from vllm.benchmarks.serve import TaskType, benchmark

    result: dict[str, Any] = await benchmark(
        task_type=TaskType.GENERATION,
        endpoint_type="openai-chat",
        api_url=f"{target.base_url}/v1/chat/completions",
        base_url=target.base_url,
        model_id=target.model,
        model_name=target.served_name,
        tokenizer=_tokenizer(target.model),
        input_requests=requests,
        logprobs=None,
        request_rate=math.inf if case.rate_per_s is None else case.rate_per_s,
        burstiness=1.0,
        disable_tqdm=True,
        num_warmups=0,
        profile=False,
        selected_percentile_metrics=["ttft", "tpot", "itl", "e2el"],
        selected_percentiles=[99],
        ignore_eos=True,
        goodput_config_dict={"ttft": bounds.ttft_ms, "tpot": bounds.tpot_ms},
        max_concurrency=case.at_once,
        lora_modules=None,
        extra_headers=None,
        extra_body={"temperature": 0},
        ready_check_timeout_sec=0,  # no request beforehand: it would fill caches
    )
    return result


def figures(result: dict[str, Any], every_second_text: bool = False) -> dict[str, Any]:
    """What is kept of upstream's result; of a mixture the text requests once more by themselves."""
    kept = {
        "requests_per_s": result["request_throughput"],
        "good_requests_per_s": result["request_goodput"],
        "input_tokens": result["total_input_tokens"] / result["completed"],
        **{
            f"{q}_{m}_ms": float(result[f"{q}_{m}_ms"])
            for m in ("ttft", "tpot", "itl", "e2el")
            for q in ("median", "p99")
        },
    }
    if every_second_text:
        ttfts, gaps = result["ttfts"][::2], [gap for gaps in result["itls"][::2] for gap in gaps]
        kept["text_median_ttft_ms"] = float(np.median(ttfts)) * 1e3
        kept["text_p99_ttft_ms"] = float(np.percentile(ttfts, 99)) * 1e3
        kept["text_p99_itl_ms"] = float(np.percentile(gaps, 99)) * 1e3 if gaps else 0.0
    return kept


@functools.cache
def _tokenizer(model: str) -> Any:
    from vllm.tokenizers import get_tokenizer

    return get_tokenizer(model, trust_remote_code=True)
