"""The language decoder: vLLM without encoder weights, taking embeddings where media stood."""

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import ray
from ray import serve

from deployments import tracing
from deployments.errors import GraphServeError
from deployments.families.base import Family
from deployments.messages import EMBEDDING_PART, ChatHead, EncodedMedia, is_finite, message_to_embedding
from deployments.placement import assigned_gpus, check_place
from deployments.streaming import joined
from deployments.upstream.engine import ChatEngine
from policies.decoder_gpus import DecoderGpus, problem
from policies.streaming import interval_s

logger = logging.getLogger("ray.serve")


@dataclass(frozen=True)
class DecoderOptions:
    """What the decoder is told: the model, and arguments of vLLM's own server by their Python names."""

    model: str
    served_model_name: str
    dtype: str
    trust_remote_code: bool
    revision: str | None
    stream_interval_s: float = 0.02  # events of one stream that come faster travel together
    stream_messages_per_s: float = 500.0  # of all streams together; more streams than that wait longer each
    engine_args: Mapping[str, Any] = field(default_factory=dict)


def engine_options(options: DecoderOptions, family: Family) -> dict[str, Any]:
    """Every argument given to upstream's server; the user's own come first, ours last."""
    return {
        "enable_auto_tool_choice": True,
        "tool_call_parser": family.tool_parser,
        **options.engine_args,
        "model": options.model,
        "served_model_name": [options.served_model_name],
        "dtype": options.dtype,
        "trust_remote_code": options.trust_remote_code,
        "revision": options.revision,
        "enable_mm_embeds": True,
        "interleave_mm_strings": True,
        "limit_mm_per_prompt": {"image": 0, "audio": 0, "video": 0},
        "worker_extension_cls": "deployments.upstream.worker_extension.WorkerExtension",
    }


def check_gpus(engine_args: Mapping[str, Any], gpus: DecoderGpus) -> None:
    """Raise GraphServeError where vLLM's workers and what Serve gives the replica do not fit."""
    if (why := problem(engine_args, gpus)) is not None:
        raise GraphServeError(why)


def held_gpus() -> DecoderGpus:
    """What this replica really has; nothing where Ray does not run."""
    if not ray.is_initialized():
        return DecoderGpus(counted=False)
    own = len(ray.get_gpu_ids())
    group = ray.util.get_current_placement_group()
    return DecoderGpus(own, group.bundle_specs if group else (), counted=own > 0)


def lead_engine_to_this_cluster() -> None:
    """The engine's process joins Ray by itself, and without an address it may join another or start one.

    Upstream sets the address too, but not where it spawns processes anyway.
    """
    os.environ["RAY_ADDRESS"] = ray.get_runtime_context().gcs_address


@serve.deployment(
    name="Decoder",
    health_check_period_s=1,
    health_check_timeout_s=10,
    max_ongoing_requests=256,
    max_queued_requests=256,
    ray_actor_options={"num_cpus": 0},
)
class Decoder:
    """Owns one vLLM engine process. Leaves by exiting as soon as that process is dead."""

    def __init__(self, options: DecoderOptions, family: Family, engine: ChatEngine | None = None) -> None:
        self.family = family
        self.options = options
        self.engine = engine or ChatEngine(engine_options(options, family))
        self.modules: tuple[str, ...] = ()
        self.streams = 0
        self._started: asyncio.Future[None] | None = None

    async def _start(self) -> None:
        check_gpus(self.options.engine_args, held_gpus())
        by_ray = self.options.engine_args.get("distributed_executor_backend") == "ray"
        if by_ray:
            lead_engine_to_this_cluster()
        await self.engine.start()
        if not by_ray:
            check_place("the decoder", assigned_gpus(), await self.engine.device_uuids())
        self.modules = await self.engine.loaded_modules()
        forbidden = {name for spec in self.family.encoders for name in spec.modules}
        if held := forbidden & set(self.modules):
            raise GraphServeError(f"the decoder loaded encoder weights: {sorted(held)}")
        logger.info("decoder ready: modules %s", ", ".join(self.modules))

    async def check_health(self) -> None:
        """Serve awaits this before the replica counts as running, so the engine starts here."""
        if self._started is None:
            self._started = asyncio.ensure_future(self._start())
        await asyncio.shield(self._started)
        self._leave_if_dead()
        await self.engine.check_health()

    def _leave_if_dead(self) -> None:
        if self.engine.dead:
            logger.error("the engine process died; this replica leaves so that it is replaced")
            os._exit(1)

    async def decoder_report(self) -> dict[str, Any]:
        """Where it runs, modules that hold weights in the engine process, and the requests it has in hand."""
        return {
            "replica_id": serve.get_replica_context().replica_id.unique_id,
            "node_id": ray.get_runtime_context().get_node_id(),
            "modules_loaded": list(self.modules),
            "unfinished_requests": self.engine.unfinished,
        }

    async def model_list(self) -> dict[str, Any]:
        """The body of ``GET /v1/models``."""
        return await self.engine.model_list()

    async def chat(self, request: dict[str, Any], *embeddings: EncodedMedia) -> AsyncIterator[ChatHead | str]:
        """Answer one chat request whose media parts were replaced by embedding parts.

        Args:
            request: the client's request; each medium's place holds
                ``{"type": "graphserve_embedding", "index": i}``.
            embeddings: the i-th embedding, resolved by Ray from the encoder's reference.

        Yields a ChatHead, then server-sent events as text, or one JSON body.
        """
        begun = time.monotonic()
        request_id = serve.context._get_serve_request_context().request_id
        pieces = self.engine.chat(self._fill(request, embeddings), request_id)
        try:
            status, streaming = await anext(pieces)
            head = ChatHead(status, streaming, spent_s=time.monotonic() - begun)
            self._leave_if_dead()  # upstream answers a dead engine with an error: not to be passed on
            tracing.note("accept", begun, begun + head.spent_s, status=status, embeddings=len(embeddings))
            yield head
            self.streams += 1
            accepted, first_s = time.monotonic(), None
            try:
                async with contextlib.aclosing(joined(pieces, self._interval_s)) as texts:
                    async for text in texts:
                        self._leave_if_dead()
                        first_s = first_s or time.monotonic()
                        yield text
            finally:
                self.streams -= 1
                _note_answer(accepted, first_s)
        finally:
            await pieces.aclose()  # ends the request in the engine when the client has gone
            self._leave_if_dead()

    def _interval_s(self) -> float:
        return interval_s(self.streams, self.options.stream_interval_s, self.options.stream_messages_per_s)

    def _fill(self, request: dict[str, Any], embeddings: tuple[EncodedMedia, ...]) -> dict[str, Any]:
        if not embeddings:
            return request
        parts = [self._part(embedding) for embedding in embeddings]
        messages = [_filled(message, parts) for message in request["messages"]]
        return {**request, "messages": messages}

    def _part(self, embedding: EncodedMedia) -> dict[str, Any]:
        """Check one embedding before upstream sees it. Raises GraphServeError."""
        import torch

        if embedding.dtype != self.options.dtype:
            raise GraphServeError(f"embedding of {embedding.dtype}, the decoder takes {self.options.dtype}")
        tensor = message_to_embedding(embedding)
        expected = self.family.expected_tokens(embedding.encoder, embedding.metadata)
        if tensor.ndim != 2 or tensor.shape[1] != self.family.hidden_size:
            raise GraphServeError(
                f"embedding of shape {tuple(tensor.shape)}, hidden size {self.family.hidden_size}"
            )
        if expected is not None and tensor.shape[0] != expected:
            raise GraphServeError(f"embedding of {tensor.shape[0]} tokens where {expected} belong")
        if not is_finite(embedding):
            raise GraphServeError("embedding holds values that are not finite")
        metadata = {name: torch.from_numpy(value.copy()) for name, value in embedding.metadata.items()}
        return self.family.content_part(embedding.encoder, tensor, metadata, embedding.uuid)


def _note_answer(accepted_s: float, first_s: float | None) -> None:
    """Two spans: until there was something to send (a stream's first token or the answer), and after."""
    ended_s = time.monotonic()
    tracing.note("first_token", accepted_s, first_s or ended_s)
    if first_s is not None:
        tracing.note("stream", first_s, ended_s)


def _filled(message: Any, parts: list[dict[str, Any]]) -> Any:
    content = message.get("content") if isinstance(message, dict) else None
    if not isinstance(content, list):
        return message
    filled = [
        parts[part["index"]] if isinstance(part, dict) and part.get("type") == EMBEDDING_PART else part
        for part in content
    ]
    return {**message, "content": filled}
