"""One in-process application: real Ingress, encoders, decoder and controller around scripted engines.

``serve.run(..., _local_testing_mode=True)`` runs every deployment on a thread of its own with Ray never
started. It has no object references; this module adds as much of them as our Ingress uses: what a
streaming call yields becomes a reference, and a reference given as an argument arrives as its value.
"""

import copy
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
import ray.serve.context
from ray import serve
from ray.serve._private.common import DeploymentID, ReplicaID
from ray.serve._private.config import DeploymentConfig
from ray.serve._private.local_testing_mode import LocalReplicaResult, LocalRouter

from app.build import CONTROLLER, DECODER, INGRESS, controller_options, decoder_options, encoder_options
from app.config import AppConfig
from app.ingress import IngressOptions
from deployments.encoders.shell import EncoderShell
from deployments.serve_view import ReplicaPlace
from policies.graph_options import GraphOptions
from tests.fakes import FakeChatEngine, FakeEngine, FakeFamily, FakePool

NAME = "fake"
APP = "local"


RUNNING: "list[App]" = []


class LocalRef:
    """What stands for an object reference: awaiting it gives the value."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __await__(self) -> Iterator[Any]:
        yield from ()
        return self.value


class LocalRefs:
    """An ObjectRefGenerator over a local streaming call."""

    def __init__(self, result: LocalReplicaResult) -> None:
        self.result = result

    async def __anext__(self) -> LocalRef:
        return LocalRef(await self.result.__anext__())


class LocalEncoder(EncoderShell):
    """The real shell; starts on its first call, for nobody checks health here."""

    def __init__(self, *args: Any) -> None:
        place = ReplicaPlace(f"{self.encoder}-1", f"{self.encoder.title()}Encoder", "n1")
        app = RUNNING[-1]
        engine: FakeEngine = getattr(app, self.encoder)
        super().__init__(*args, place=place, pool=app.pools[self.encoder], make_engine=engine.made)

    async def encode(self, *args: Any, **kwargs: Any) -> Any:
        await self.check_health()
        async for piece in super().encode(*args, **kwargs):
            yield piece

    def leave(self, reason: str) -> None:
        raise AssertionError(f"left: {reason}")


@serve.deployment(name="VisionEncoder")
class LocalVision(LocalEncoder):
    encoder = "vision"


@serve.deployment(name="AudioEncoder")
class LocalAudio(LocalEncoder):
    encoder = "audio"


@serve.deployment(name="Decoder")
class LocalDecoder(DECODER.func_or_class):  # type: ignore[misc]
    """The real decoder around the scripted engine."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args, RUNNING[-1].engine)


@serve.deployment(name="Ingress")
class LocalIngress(INGRESS.func_or_class):  # type: ignore[misc]
    """The real Ingress, asked over ASGI without a socket."""

    async def __init__(self, *args: Any) -> None:
        set_context(self)
        await super().__init__(*args)
        # Serve writes into the one FastAPI app of the class; each application here gets its own.
        own = copy.copy(self._asgi_app)
        own.exception_handlers, own.middleware_stack = dict(own.exception_handlers), None
        self._set_asgi_app(own)

    async def ask(self, method: str, path: str, **request: Any) -> tuple[int, dict[str, str], str]:
        transport = httpx.ASGITransport(app=self._asgi_app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://local") as client:
            answer = await client.request(method, path, **request)
        return answer.status_code, dict(answer.headers), answer.text

    def requests_in_hand(self) -> int:
        return int(self.watch.in_hand)


def set_context(servable: Any) -> None:
    """Serve's own context of a replica, which local testing mode leaves out."""
    ray.serve.context._set_internal_replica_context(
        replica_id=ReplicaID("r1", DeploymentID("Ingress", APP)),
        servable_object=servable,
        _deployment_config=DeploymentConfig(),
        rank=None,
        world_size=1,
    )


@dataclass
class App:
    """A running application and the scripted parts inside it."""

    ingress: Any
    vision: FakeEngine
    audio: FakeEngine
    pools: dict[str, FakePool]
    engine: FakeChatEngine

    def ask(self, method: str, path: str, **request: Any) -> tuple[int, dict[str, str], Any]:
        """Status, headers and body: parsed JSON, or the text of a stream."""
        status, headers, text = self.ingress.ask.remote(method, path, **request).result(timeout_s=60)
        return status, headers, json.loads(text) if "json" in headers["content-type"] else text

    def chat(self, *parts: Any, headers: dict[str, str] | None = None, **fields: Any) -> Any:
        """One user message of these parts."""
        body = {"model": NAME, "messages": [{"role": "user", "content": list(parts)}], **fields}
        return self.ask("POST", "/v1/chat/completions", json=body, headers=headers or {})


def _to_refs(result: LocalReplicaResult) -> LocalRefs:
    return LocalRefs(result)


def running_app(monkeypatch: pytest.MonkeyPatch, args: dict[str, Any]) -> Iterator[App]:
    """The application with these arguments in its config."""
    monkeypatch.setattr(LocalReplicaResult, "to_object_ref_gen", _to_refs)
    resolve = LocalRouter._resolve_deployment_responses

    def with_references(self: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        values = tuple(arg.value if isinstance(arg, LocalRef) else arg for arg in args)
        return resolve(self, values, kwargs)

    monkeypatch.setattr(LocalRouter, "_resolve_deployment_responses", with_references)
    set_context(None)
    config = AppConfig.model_validate({"model": NAME, "dtype": "float32", **args})
    app = App(None, FakeEngine(), FakeEngine(), {"vision": FakePool(), "audio": FakePool()}, FakeChatEngine())
    RUNNING.append(app)  # arguments of a deployment are copied; what a test scripts must be the same object
    app.ingress = serve.run(_bind(config), name=APP, _local_testing_mode=True)
    yield app
    RUNNING.remove(app)
    ray.serve.context._INTERNAL_REPLICA_CONTEXT = None


def _bind(config: AppConfig) -> Any:
    family = FakeFamily()
    graphs = {spec.encoder: GraphOptions() for spec in family.encoders}
    controller = CONTROLLER.bind(controller_options(config, family, graphs))
    encoders = {
        spec.encoder: kind.bind(encoder_options(config, spec, graphs[spec.encoder]), family, controller)
        for spec, kind in zip(family.encoders, (LocalVision, LocalAudio), strict=True)
    }
    decoder = LocalDecoder.bind(decoder_options(config, NAME), family)
    options = IngressOptions(config, family, NAME, "identity", config.media.limits, config.media.fetch, ())
    return LocalIngress.bind(options, encoders, decoder, controller)
