"""What preparing a picture or a clip costs: the checkpoint's own processor beside the faster way.

Both in turns, in one process on one thread, on media that never repeat; then through worker processes,
from a file's bytes to the encoder's input in the replica. `python -m benchmarks.preprocessing`.
"""

import argparse
import asyncio
import json
import os
import statistics
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch
from PIL import Image

from benchmarks.machine import facts
from deployments.encoders.media_decode import decoder
from deployments.encoders.preprocess_pool import MediaWork, PoolOptions, PreprocessPool, upstream_work
from deployments.families.base import EncoderInputs
from deployments.families.minicpmo_gpu import pack_features, pixels_to_device
from deployments.families.minicpmo_preprocess import CheckpointPreprocessor, make_preprocessor
from deployments.families.registry import load_family
from deployments.upstream.encoder_model import EncoderModelSpec, encoder_config
from policies.limits import MediaLimits
from tests import media
from toy_model.write import ensure

MODALITY = {"vision": "image", "audio": "audio"}
PHOTOS = ("astronaut", "coffee", "rocket", "chelsea")
LIMITS = MediaLimits()
TOLERANCE = 1e-6

Sample = tuple[float, float]  # wall and processor milliseconds
Samples = dict[str, list[Sample]]


def photograph(width: int, height: int, image_format: str, seed: int) -> bytes:
    """A photograph with noise of its own, as a file."""
    pixels = np.asarray(media.photo(PHOTOS[seed % len(PHOTOS)]).resize((width, height)), dtype=np.int16)
    noise = np.random.default_rng(seed).integers(-8, 9, pixels.shape)
    image = Image.fromarray(np.clip(pixels + noise, 0, 255).astype(np.uint8))
    return media.image_bytes(image, image_format)


def speech(seconds: float, seed: int) -> bytes:
    """Speech with noise of its own, as a WAV file."""
    samples = media.speech(seconds, seed=seed)
    noise = np.random.default_rng(seed).normal(0, 1e-3, len(samples))
    return media.sound_bytes((samples + noise).astype(np.float32))


ITEMS: dict[str, tuple[str, Callable[[int], bytes]]] = {
    "1344 x 1344, JPEG": ("vision", lambda seed: photograph(1344, 1344, "JPEG", seed)),
    "1300 x 900, JPEG": ("vision", lambda seed: photograph(1300, 900, "JPEG", seed)),
    "1300 x 900, PNG": ("vision", lambda seed: photograph(1300, 900, "PNG", seed)),
    "3000 x 2000, JPEG": ("vision", lambda seed: photograph(3000, 2000, "JPEG", seed)),
    "400 x 300, JPEG": ("vision", lambda seed: photograph(400, 300, "JPEG", seed)),
    "speech, 5 s": ("audio", lambda seed: speech(5, seed)),
    "speech, 30 s": ("audio", lambda seed: speech(30, seed)),
}
THROUGH_WORKERS = ("1344 x 1344, JPEG", "1300 x 900, PNG", "speech, 5 s")


def spec(model: str, encoder: str) -> EncoderModelSpec:
    """The checkpoint as an encoder replica would load it."""
    return EncoderModelSpec(model, MODALITY[encoder], "float32", trust_remote_code=True)


def encoder_input(inputs: EncoderInputs) -> list[torch.Tensor]:
    """Everything float32 that the encoder is given, on the CPU as its device: one tensor a shape."""
    if "audio_features" in inputs.arrays:
        lens = [int(n) for n in np.asarray(inputs.arrays["audio_feature_lens"]).reshape(-1)]
        return [torch.from_numpy(pack_features([list(inputs.arrays["audio_features"])], lens))]
    strips, levels = list(inputs.arrays["pixel_values"]), inputs.arrays.get("levels")
    parts = [strips[:1], strips[1:]] if len(strips) > 1 else [strips]
    return [pixels_to_device(part, levels, torch.device("cpu"), torch.float32) for part in parts]


def checkpoint_work(family: Any, encoder: str, model: EncoderModelSpec, limits: MediaLimits) -> MediaWork:
    """A worker that keeps to the checkpoint's processor."""
    torch.set_num_threads(1)
    own = CheckpointPreprocessor(family, encoder, encoder_config(model))
    return MediaWork(decoder(model.modality, limits), own)


def bare(own: CheckpointPreprocessor) -> Callable[[Any], Any]:
    """The checkpoint's processor called directly, without vLLM's prompt handling and hashes around it."""
    processor = own.processor.processor.info.get_hf_processor()
    if own.encoder == "vision":
        return lambda medium: processor.image_processor([[medium]], return_tensors="pt")
    return lambda medium: processor.audio_feature_extract([[medium]], None, True, 16_000)


def in_one_process(model: str, name: str, count: int) -> Samples:
    """Decoded medium to the encoder's input, every way in turns."""
    encoder, make = ITEMS[name]
    family: Any = load_family(model)
    config = encoder_config(spec(model, encoder))
    own = CheckpointPreprocessor(family, encoder, config)
    fast = make_preprocessor(family, encoder, config)
    if getattr(fast, "preprocessing", None) != "fast":
        raise SystemExit(f"{model} keeps the checkpoint's processor for {encoder}")
    decode = decoder(MODALITY[encoder], LIMITS)
    alone = bare(own)
    samples: Samples = defaultdict(list)
    for number in range(count + 2):
        data = make(number)
        decoding, medium = timed(lambda data=data: decode(data))
        processor, _ = timed(lambda medium=medium: alone(medium))
        checkpoint, theirs = timed(lambda medium=medium: encoder_input(own(medium)))
        ours_ms, ours = timed(lambda medium=medium: encoder_input(fast(medium)))
        for mine, reference in zip(ours, theirs, strict=True):
            torch.testing.assert_close(mine, reference, rtol=0, atol=TOLERANCE)
        if number >= 2:  # caches and pages are warm
            samples["decode"].append(decoding)
            samples["processor"].append(processor)
            samples["checkpoint"].append(checkpoint)
            samples["fast"].append(ours_ms)
    return dict(samples)


def timed(call: Callable[[], Any]) -> tuple[Sample, Any]:
    """Wall and processor milliseconds of this thread's process, and the result."""
    wall, cpu = time.perf_counter(), time.process_time()
    result = call()
    return ((time.perf_counter() - wall) * 1e3, (time.process_time() - cpu) * 1e3), result


async def through_workers(model: str, name: str, count: int) -> Samples:
    """A file's bytes to the encoder's input in the replica, through one worker process each, in turns."""
    encoder, make = ITEMS[name]
    family: Any = load_family(model)
    options = PoolOptions(1, 60.0, LIMITS)
    works = {"checkpoint": checkpoint_work, "fast": upstream_work}
    pools = {n: PreprocessPool(family, encoder, spec(model, encoder), options, w) for n, w in works.items()}
    await asyncio.gather(*(pool.warm() for pool in pools.values()))
    samples: Samples = defaultdict(list)
    for number in range(count + 2):
        data = make(number)
        for way, pool in pools.items():
            if pool.preprocessing != way:
                raise SystemExit(f"the workers prepare by {pool.preprocessing}, not by {way}")
            sample = await _through(pool, data)
            if number >= 2:
                samples[way].append(sample)
    workers = psutil.Process().children()
    for pool in pools.values():
        pool.close()
    await asyncio.to_thread(psutil.wait_procs, [w for w in workers if "spawn_main" in str(w.cmdline())], 20)
    return dict(samples)


async def _through(pool: PreprocessPool, data: bytes) -> Sample:
    wall, cpu = time.perf_counter(), cpu_s_of_all()
    encoder_input(await pool.run(data))
    return (time.perf_counter() - wall) * 1e3, (cpu_s_of_all() - cpu) * 1e3


def cpu_s_of_all() -> float:
    """Processor seconds of this process and its workers, to the nanosecond (Linux keeps them by thread)."""
    processes = [os.getpid(), *(child.pid for child in psutil.Process().children())]
    total = 0
    for pid in processes:
        for stat in Path(f"/proc/{pid}/task").glob("*/schedstat"):
            total += int(stat.read_text().split()[0])
    return total / 1e9


def quartiles(values: list[float]) -> str:
    """Median, and the tenth and ninetieth percentile."""
    ten = statistics.quantiles(values, n=10)
    return f"{statistics.median(values):.1f} ({ten[0]:.1f} to {ten[-1]:.1f})"


def ratio(samples: Samples, way: str, other: str, kind: int) -> float:
    """Median of ``way`` over median of ``other``; kind 0 is wall time, 1 processor time."""
    return statistics.median(s[kind] for s in samples[way]) / statistics.median(
        s[kind] for s in samples[other]
    )


def table(results: dict[str, Samples], against: str) -> str:
    """Wall and processor milliseconds of every way, and the ratios of the faster one to ``against``."""
    ways = list(next(iter(results.values())))
    head = [f"{way}, {kind}" for way in ways for kind in ("wall", "CPU")]
    lines = [
        f"| item | {' | '.join(head)} | fast / {against}: wall, CPU |",
        "|---" * (len(head) + 2) + "|",
    ]
    for name, samples in results.items():
        cells = [quartiles([s[kind] for s in samples[way]]) for way in ways for kind in (0, 1)]
        ratios = ", ".join(f"{ratio(samples, 'fast', against, kind):.2f}" for kind in (0, 1))
        lines.append(f"| {name} | {' | '.join(cells)} | {ratios} |")
    return "\n".join(lines)


def main() -> None:
    """Measure, print two tables, and write them with every sample where asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", help="a MiniCPM-o 4.5 checkpoint's folder (its weights are not read)")
    parser.add_argument("--count", type=int, default=30, help="media of each kind")
    parser.add_argument("--items", nargs="*", default=list(ITEMS), choices=list(ITEMS))
    parser.add_argument("--json", type=Path, help="where to write the samples")
    args = parser.parse_args()
    torch.set_num_threads(1)
    model = args.model or str(ensure())
    alone = {name: in_one_process(model, name, args.count) for name in args.items}
    workers = {
        name: asyncio.run(through_workers(model, name, args.count))
        for name in args.items
        if name in THROUGH_WORKERS
    }
    print(table(alone, "processor"))
    if workers:
        print(table(workers, "checkpoint"))
    if args.json:
        found = {
            **facts("benchmarks.preprocessing"),
            "count": args.count,
            "one_process": alone,
            "workers": workers,
        }
        args.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
