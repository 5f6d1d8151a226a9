"""Doubles of our own interfaces. Each implements the real one and fails only where its script says so."""

import asyncio
import hashlib
import threading
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import ray.exceptions

from deployments.errors import ClientError, TerminalGraphError
from deployments.families.base import EncoderInputs, EncoderSpec
from deployments.messages import ChatHead, EncodedMedia, EncodeReceipt, MediaItem
from policies.stats import GraphStats

HANG = object()
"""In a script: this step never ends."""
LOST = object()
"""In an encoder's script: the receipt comes, the embedding is lost."""


# ---- a family ----


@dataclass(frozen=True)
class FakeFamily:
    """``Family`` whose media are texts like ``4x4:anything``: what stands before the colon is the shape."""

    hidden_size: int = 4
    name = "fake"
    architectures = ("FakeModel",)
    placeholders = ("<pad>",)
    encoders = (
        EncoderSpec("vision", "image", ("eye",), ("image_url",)),
        EncoderSpec("audio", "audio", ("ear",), ("input_audio", "audio_url")),
    )
    tool_parser = "hermes"

    def media_key(self, encoder: str, data: bytes) -> str:
        key, colon, _ = data.decode("latin-1").partition(":")
        if key == "bad":
            raise ClientError("this part is bad")
        return key if colon else "unknown"

    def preprocessor(self, encoder: str, vllm_config: Any) -> Callable[[Any], EncoderInputs]:
        return inputs_of

    def core(self, encoder: str, model: Any, options: Any, device: Any) -> "FakeCore":
        return FakeCore(FakeAdapter(encoder), self.hidden_size)

    def stand_in(self, encoder: str, shape_key: str) -> EncoderInputs:
        return inputs_of(f"{shape_key}:stand-in".encode())

    def expected_tokens(self, encoder: str, metadata: Mapping[str, Any]) -> int | None:
        return int(metadata["tokens"][0]) if "tokens" in metadata else None

    def content_part(
        self, encoder: str, embedding: Any, metadata: Mapping[str, Any], uuid: str
    ) -> dict[str, Any]:
        return {"type": f"{encoder}_embeds", "embedding": embedding, "uuid": uuid}


def inputs_of(data: bytes) -> EncoderInputs:
    """What preparing such a medium gives: its bytes as an array, two tokens."""
    key = FakeFamily().media_key("vision", data)
    return EncoderInputs({"data": np.frombuffer(data, np.uint8)}, key, 2, {"tokens": np.asarray([2])})


# ---- the GPU side ----


class FakeAdapter:
    """``GraphAdapter``: a key is captured by its first call and hit from then on."""

    def __init__(self, encoder: str, fail_capture: bool = False) -> None:
        self.encoder = encoder
        self.failure: str | None = None
        self.leaked_bytes = 0
        self.fail_capture = fail_capture
        self.started = False
        self._hits: dict[str, int] = {}
        self._stats = GraphStats()

    def start(self) -> None:
        self.started = True

    def __call__(self, inputs: Mapping[str, Any], *, batch_size: int, tokens: int = 0) -> Any:
        if self.failure is not None:
            raise TerminalGraphError(self.encoder, self.failure)
        key = str(batch_size)
        if self.fail_capture and key not in self._hits:
            self.failure = "capture: scripted"
            self._stats = replace(self._stats, capture_failures=1)
            raise RuntimeError("scripted capture failure")
        self._hits[key] = self._hits.get(key, 0) + 1
        self._stats = replace(self._stats, graph_hits=self._stats.graph_hits + 1, num_graphs=len(self._hits))
        return inputs["x"]

    def stats(self) -> GraphStats:
        return self._stats

    def get_cumulative_stats(self) -> dict[str, Any]:
        return self._stats.as_dict()

    def captured_keys(self) -> tuple[str, ...]:
        return tuple(self._hits)

    def hits_by_graph(self) -> dict[str, int]:
        return dict(self._hits)


def embedding_of(data: bytes, hidden: int = 4) -> Any:
    """The (2, hidden) float32 tensor that stands for these bytes."""
    import torch

    seed = int.from_bytes(hashlib.sha256(data).digest()[:4], "big")
    return torch.from_numpy(np.random.default_rng(seed).standard_normal((2, hidden), dtype=np.float32))


class FakeCore:
    """``EncoderCore``."""

    def __init__(self, adapter: FakeAdapter, hidden: int) -> None:
        self.adapter = adapter
        self.hidden = hidden

    def encode(self, batch: Sequence[EncoderInputs]) -> list[Any]:
        self.adapter({"x": None}, batch_size=len(batch), tokens=2 * len(batch))
        return [embedding_of(bytes(item.arrays["data"]), self.hidden) for item in batch]


class FakeEngine:
    """``GpuThread``. ``script`` says of each batch in turn: None (works), an exception, or HANG.

    A hanging batch goes on when ``release`` is set. ``load_error`` makes the start fail.
    """

    def __init__(
        self,
        *script: Any,
        load_error: Exception | None = None,
        fail_capture: bool = False,
        terminal: bool = False,
        gate: threading.Event | None = None,
    ) -> None:
        self.script = list(script)
        self.load_error = load_error
        self.core = FakeCore(FakeAdapter("vision", fail_capture), 4)
        self.terminal = terminal
        self.gate = gate
        self.release = threading.Event()
        self.batches: list[list[EncoderInputs]] = []
        self.threads: set[int] = set()
        self.warmed: list[str] = []
        self.asked: list[str] = []
        self.device = "cpu"
        self.graphs_enabled: bool | None = None

    def made(self, family: Any, spec: Any, options: Any, *, graphs_enabled: bool) -> "FakeEngine":
        """In the place of ``GpuThread``'s constructor."""
        self.graphs_enabled = graphs_enabled
        return self

    def load(self) -> tuple[str, ...]:
        if self.load_error is not None:
            raise self.load_error
        return ("eye",)

    def warm(self, keys: Sequence[str]) -> None:
        self.asked = list(keys)
        for key in keys:
            self.core.encode([inputs_of(f"{key}:stand-in".encode())])
            self.warmed.append(key)

    def encode(self, batch: Sequence[EncoderInputs]) -> tuple[list[Any], bool]:
        self.threads.add(threading.get_ident())
        self.batches.append(list(batch))
        if self.gate is not None:
            self.gate.wait(20)
        step = self.script.pop(0) if self.script else None
        if step is HANG:
            self.release.wait(20)
        if isinstance(step, Exception):
            if self.terminal:
                self.core.adapter.failure = f"replay: {step}"
            raise step
        if callable(step):
            return step(batch), True
        return self.core.encode(batch), True

    @property
    def failure(self) -> str | None:
        return self.core.adapter.failure

    @property
    def leaked_bytes(self) -> int:
        return 0

    def stats(self) -> GraphStats:
        return self.core.adapter.stats()

    def captured_keys(self) -> tuple[str, ...]:
        return self.core.adapter.captured_keys()

    def hits_by_graph(self) -> dict[str, int]:
        return self.core.adapter.hits_by_graph()


class FakePool:
    """``PreprocessPool`` without processes; ``script`` says of each item: None or an exception."""

    preprocessing = "checkpoint"

    def __init__(self, *script: Any, warm_error: Exception | None = None) -> None:
        self.script = list(script)
        self.warm_error = warm_error
        self.spent_s = 0.0

    async def warm(self) -> None:
        if self.warm_error is not None:
            raise self.warm_error

    async def run(self, data: bytes) -> EncoderInputs:
        step = self.script.pop(0) if self.script else None
        if isinstance(step, Exception):
            raise step
        await asyncio.sleep(0)
        self.spent_s += 0.25
        return inputs_of(data)

    def close(self) -> None:
        pass


# ---- handles ----


class FakeMethod:
    """A remote method of a Serve handle: ``remote`` gives an awaitable of the scripted answer."""

    def __init__(self, *script: Any) -> None:
        self.script = list(script)
        self.calls: list[tuple[Any, ...]] = []

    def remote(self, *args: Any) -> Any:
        self.calls.append(args)
        return self._answer(self.script.pop(0) if len(self.script) > 1 else self.script[0])

    async def _answer(self, step: Any) -> Any:
        if step is HANG:
            await asyncio.Event().wait()
        if isinstance(step, Exception):
            raise step
        return step


@dataclass
class FakeController:
    """The controller's handle as an encoder replica uses it."""

    start_orders: FakeMethod = field(
        default_factory=lambda: FakeMethod({"graphs_enabled": True, "warm_keys": []})
    )
    replica_failed: FakeMethod = field(default_factory=lambda: FakeMethod(None))


class FakeRef:
    """An object reference: awaiting it gives the value, or raises what it holds."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __await__(self) -> Any:
        return self._get().__await__()

    async def _get(self) -> Any:
        if self.value is HANG:
            await asyncio.Event().wait()
        if isinstance(self.value, BaseException) and not isinstance(self.value, ClientError):
            raise self.value
        return self.value


class FakeCall:
    """A streaming call: yields what its script says, raises exceptions at their place, HANGs at HANG."""

    def __init__(self, items: Sequence[Any]) -> None:
        self.items = list(items)
        self.cancelled = 0

    def __aiter__(self) -> "FakeCall":
        return self

    async def __anext__(self) -> Any:
        if not self.items:
            raise StopAsyncIteration
        item = self.items.pop(0)
        if item is HANG:
            await asyncio.Event().wait()
        if isinstance(item, BaseException):
            raise item
        return item

    async def _to_object_ref_gen(self) -> "FakeCall":
        return self

    def cancel(self) -> None:
        self.cancelled += 1


class FakeEncoderHandle:
    """The Serve handle of an encoder deployment.

    Script per call: None (works), an exception (raised where the receipt is read), a ClientError
    (returned, as the replica does), HANG, or LOST.
    """

    def __init__(self, *script: Any, bytes_each: int = 32) -> None:
        self.script = list(script)
        self.bytes_each = bytes_each
        self.items: list[MediaItem] = []
        self.avoided: list[tuple[str, ...]] = []
        self.calls: list[FakeCall] = []

    def options(self, **_: Any) -> "FakeEncoderHandle":
        return self

    @property
    def encode(self) -> "FakeEncoderHandle":
        return self

    def remote(self, item: MediaItem, *, shape_key: str, avoid: tuple[str, ...] = ()) -> FakeCall:
        self.items.append(item)
        self.avoided.append(avoid)
        step = self.script.pop(0) if self.script else None
        value: Any = EncodedMedia(item.uuid, "vision", "float32", np.zeros((2, 4), np.float32))
        if step is LOST:
            value = ray.exceptions.ObjectLostError("00" * 28, None, "")
        first = step if isinstance(step, Exception) or step is HANG else self._receipt(item, shape_key)
        call = FakeCall([FakeRef(first), FakeRef(value)])
        self.calls.append(call)
        return call

    def _receipt(self, item: MediaItem, shape_key: str) -> EncodeReceipt:
        return EncodeReceipt(
            item.uuid, "vision", "r1", shape_key, 2, self.bytes_each, "miss", 1, 0.0, 0.0, 0.0
        )


class FakeDecoderHandle:
    """The Serve handle of the decoder. Script per call: the items of the answer, exceptions among them."""

    def __init__(self, *script: Sequence[Any]) -> None:
        self.script = list(script)
        self.requests: list[dict[str, Any]] = []
        self.refs: list[tuple[FakeRef, ...]] = []
        self.calls: list[FakeCall] = []

    def options(self, **_: Any) -> "FakeDecoderHandle":
        return self

    @property
    def chat(self) -> "FakeDecoderHandle":
        return self

    def remote(self, request: dict[str, Any], *refs: FakeRef) -> FakeCall:
        self.requests.append(request)
        self.refs.append(refs)
        lost = [ref.value for ref in refs if isinstance(ref.value, Exception)]
        items = lost or (self.script.pop(0) if self.script else [ChatHead(200, False), "{}"])
        call = FakeCall(items)
        self.calls.append(call)
        return call


# ---- the engine ----


class FakeChatEngine:
    """``ChatEngine``: answers with what it was asked, as one JSON body or as a stream of words."""

    def __init__(self, *script: Any) -> None:
        self.script = list(script)
        self.requests: list[dict[str, Any]] = []
        self.dead = False

    async def start(self) -> None:
        pass

    async def device_uuids(self) -> tuple[str, ...]:
        return ()

    async def loaded_modules(self) -> tuple[str, ...]:
        return ("language_model",)

    async def check_health(self) -> None:
        pass

    async def model_list(self) -> dict[str, Any]:
        return {"object": "list", "data": [{"id": "fake"}]}

    async def chat(self, request: dict[str, Any], request_id: str = "") -> AsyncIterator[Any]:
        self.requests.append(request)
        step = self.script.pop(0) if self.script else None
        if isinstance(step, Exception):
            raise step
        words = [spoken(part) for message in request["messages"] for part in _parts(message)]
        if request.get("stream"):
            yield 200, True
            for word in words:
                yield f"data: {word}\n\n"
            yield "data: [DONE]\n\n"
        else:
            yield 200, False
            yield '{"said": "' + " ".join(words) + '"}'

    def shutdown(self) -> None:
        pass


def _parts(message: dict[str, Any]) -> list[Any]:
    content = message["content"]
    return [content] if isinstance(content, str) else content


def spoken(part: Any) -> str:
    """How the fake engine names a part: text as it is, an embedding by its first number."""
    if isinstance(part, str):
        return part
    if part["type"] == "text":
        return str(part["text"])
    return f"{part['type']}={float(part['embedding'][0, 0]):.4f}"
