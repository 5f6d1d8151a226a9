"""What each hop of a request costs: over HTTP from outside, and an encode from inside Ray.

A hop is the difference between two requests that are equal up to it.
"""

import asyncio
import http.client
import json
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

from app.build import build
from app.config import AppConfig
from benchmarks import encode_call
from benchmarks.encode_call import timed_encode
from benchmarks.load import Kind, clip
from deployments.families.registry import load_family
from deployments.messages import MediaItem
from tests.servers import app_config, free_port

TOKENS = 65
"""Length of the long answer; its first token is the short answer, so 64 more make the difference."""

UNCOUNTED = 3
"""Encodes before the first that counts."""

Samples = dict[str, list[float]]


def over_http(ours: str, undivided: str, model: str, count: int) -> Samples:
    """Milliseconds of each kind of request, the kinds in turns, on connections that stay open."""
    a, b = _Connection(ours), _Connection(undivided)
    long_count = max(1, count // 10)
    kinds: dict[str, Callable[[], Any]] = {
        "GET /-/healthz (Serve's proxy)": lambda: a.get("/-/healthz"),
        "GET /health/live (proxy, Ingress)": lambda: a.get("/health/live"),
        "GET /v1/models (proxy, Ingress, Decoder)": lambda: a.get("/v1/models"),
        "GET /health, undivided": lambda: b.get("/health"),
        "GET /v1/models, undivided": lambda: b.get("/v1/models"),
        "chat, 1 token": lambda: a.chat(model, 1),
        "chat, 1 token, undivided": lambda: b.chat(model, 1),
    }
    long_kinds: dict[str, Callable[[], Any]] = {
        f"chat, {TOKENS} tokens streamed": lambda: a.chat(model, TOKENS, stream=True),
        f"chat, {TOKENS} tokens streamed, undivided": lambda: b.chat(model, TOKENS, stream=True),
    }
    return {**_in_turns(kinds, count), **_in_turns(long_kinds, long_count)}


def _in_turns(kinds: dict[str, Callable[[], Any]], count: int) -> Samples:
    samples: Samples = defaultdict(list)
    for number in range(count + 1):
        for name, call in kinds.items():
            begun = time.perf_counter()
            call()
            if number:  # the first of each opens the connection
                samples[name].append((time.perf_counter() - begun) * 1e3)
    return dict(samples)


class _Connection:
    """One kept connection; http.client costs the client the least."""

    def __init__(self, base_url: str) -> None:
        parts = urlsplit(base_url)
        self.connection = http.client.HTTPConnection(str(parts.hostname), parts.port, timeout=60)

    def get(self, path: str) -> bytes:
        self.connection.request("GET", path)
        return self._body()

    def chat(self, model: str, tokens: int, stream: bool = False) -> bytes:
        body = {
            "model": model,
            "messages": [{"role": "user", "content": "What do you see?"}],
            "max_tokens": tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": stream,
        }
        headers = {"Content-Type": "application/json"}
        self.connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
        return self._body()

    def _body(self) -> bytes:
        response = self.connection.getresponse()
        data = response.read()
        if response.status != 200:
            raise RuntimeError(f"status {response.status}: {data[:500]!r}")
        return data


def encode_stages(model: str, count: int, side: int) -> Samples:
    """Milliseconds of encoding new pictures one after the other, by stage, called as the Ingress calls.

    Starts the application once more, inside this process, for only a member of its Ray can hold a handle.
    What the stages do not explain is the hop.
    """
    import ray
    from ray import serve

    config = app_config(free_port())
    app = config["applications"][0]
    ray.init(address="local", runtime_env=app["runtime_env"], log_to_driver=False, logging_level="ERROR")
    try:
        serve.start(http_options=config["http_options"], logging_config={"log_level": "ERROR"})
        serve.run(build(AppConfig(**app["args"])), name="graphserve")
        handle = serve.get_deployment_handle("VisionEncoder", "graphserve")
        kind = Kind(f"{side} x {side}", image_px=(side, side))
        return asyncio.run(encode_all(handle.options(stream=True, _by_reference=True), model, kind, count))
    finally:
        serve.shutdown()
        ray.shutdown()


async def encode_all(handle: Any, model: str, kind: Kind, count: int) -> Samples:
    """Encode ``count`` new media of a kind one after the other; milliseconds by stage."""
    family = load_family(model)
    encoder = "audio" if kind.audio_s is not None else "vision"
    samples: Samples = defaultdict(list)
    for number in range(count + UNCOUNTED):
        data = medium(kind, number)
        item = MediaItem(data, family.media_key(encoder, data), uuid=f"bench-{number}")
        stages, _, _ = await timed_encode(handle, item)
        for name, value in stages.items() if number >= UNCOUNTED else ():
            samples[f"encode of {kind.name}: {name}"].append(value * 1e3)
    return dict(samples)


def medium(kind: Kind, seed: int) -> bytes:
    """A file of new noise."""
    if kind.audio_s is not None:
        return clip(seed, kind.audio_s)
    assert kind.image_px is not None
    height, width = kind.image_px
    return encode_call.noise(seed, width, height)


def table(hops: dict[str, dict[str, float]]) -> str:
    """The samples' spreads and the differences of their medians."""
    lines = ["| one at a time, nothing else asked of either server | median, ms | p99, ms |", "|---|---|---|"]
    lines += [f"| {name} | {of['median']:.2f} | {of['p99']:.2f} |" for name, of in hops.items()]
    lines += ["", "Differences of medians, ms:", "", "| hop | ms |", "|---|---|"]
    lines += [f"| {name} | {ms:.2f} |" for name, ms in differences(hops).items()]
    return "\n".join(lines)


def differences(hops: dict[str, dict[str, float]]) -> dict[str, float]:
    """What each hop adds, from requests that are equal up to it."""
    ms = {name: of["median"] for name, of in hops.items()}
    long_name = next(name for name in ms if name.endswith("tokens streamed"))
    more = int(long_name.split()[1]) - 1
    ours = (ms[long_name] - ms["chat, 1 token"]) / more
    other = (ms[f"{long_name}, undivided"] - ms["chat, 1 token, undivided"]) / more
    proxy, live = ms["GET /-/healthz (Serve's proxy)"], ms["GET /health/live (proxy, Ingress)"]
    return {
        "client to Serve's proxy and back": proxy,
        "proxy to Ingress and back": live - proxy,
        "Ingress to Decoder and back": ms["GET /v1/models (proxy, Ingress, Decoder)"] - live,
        "a chat of one token, more than undivided": ms["chat, 1 token"] - ms["chat, 1 token, undivided"],
        "one more streamed token": ours,
        "one more streamed token, undivided": other,
        "one more streamed token, more than undivided": ours - other,
    }
