"""What a picture costs that was seen before: answers of one token, over HTTP, each kind in turns.

The same application answers text alone, pictures that are new, and pictures that it holds. A hit needs no
encode, and no prefill where the decoder's prefix cache still holds the prompt.

    python -m benchmarks.cache_hits [--rounds N] [--json PATH]
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx

from benchmarks.machine import describe
from tests import media
from tests.asking import text, user
from tests.servers import running_app

SIZES = ((120, 90), (420, 300), (1600, 1200))
WARM = 3


def picture(size: tuple[int, int], seed: int) -> Any:
    """The prompt around a picture; the text after it is always the same."""
    data = media.image_bytes(media.drawn(*size, seed=seed), "JPEG", quality=90)
    return user(dict(media.image_part(data, "image/jpeg")), text("What is this?"))


def timed(api: httpx.Client, messages: Any) -> tuple[float, int]:
    """Milliseconds and prompt tokens of one answer."""
    body = json.dumps({"messages": messages, "max_tokens": 1, "temperature": 0}).encode()
    begun = time.perf_counter()
    answer = api.post("/v1/chat/completions", content=body)
    took_ms = (time.perf_counter() - begun) * 1e3
    answer.raise_for_status()
    return took_ms, answer.json()["usage"]["prompt_tokens"]


def measure(api: httpx.Client, size: tuple[int, int], rounds: int) -> dict[str, Any]:
    """Medians of pictures of one size: new, and asked again at once."""
    misses, hits = [], []
    tokens = 0
    for number in range(rounds + WARM):
        messages = picture(size, number)
        miss_ms, tokens = timed(api, messages)
        hit_ms, _ = timed(api, messages)
        if number >= WARM:
            misses.append(miss_ms)
            hits.append(hit_ms)
    row = {"size": f"{size[0]} x {size[1]}", "prompt_tokens": tokens}
    return row | {"miss_ms": statistics.median(misses), "hit_ms": statistics.median(hits)}


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=30, help="of each size (default 30)")
    parser.add_argument("--json", type=Path, help="also write the figures here")
    options = parser.parse_args()
    machine = describe()
    with (
        tempfile.TemporaryDirectory() as folder,
        running_app(Path(folder)) as server,
        httpx.Client(base_url=server.base_url, timeout=60, trust_env=False) as api,
    ):
        words = [timed(api, user(text(f"What is this? {n}")))[0] for n in range(options.rounds + WARM)]
        rows = [measure(api, size, options.rounds) for size in SIZES]
    print(f"text alone: {statistics.median(words[WARM:]):.1f} ms")
    for row in rows:
        print(
            f"{row['size']:12} {row['prompt_tokens']:5} prompt tokens: new {row['miss_ms']:.1f} ms, "
            f"again {row['hit_ms']:.1f} ms"
        )
    if options.json:
        figures = {"machine": machine, "text_ms": statistics.median(words[WARM:]), "rows": rows}
        options.json.write_text(json.dumps(figures, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
