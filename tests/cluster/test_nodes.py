"""The application over three nodes, one of which dies under load. Needs: Ray, vLLM on the CPU."""

import asyncio
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from tests.asking import check_parity, text, user
from tests.cases import MANY_SLICES, clip, picture
from tests.load import Load
from tests.nodes import Nodes, running_nodes
from tests.servers import Server, client, running_app
from tests.truth import pictures, right_alone

HEAD = {"resources": {"decoder": 2}}
ENCODERS = {"labels": {"role": "encoders"}}
PINNED = {"num_cpus": 1, "label_selector": {"role": "encoders"}}
"""A node has four processors for Ray to give, so that one can take all four replicas."""
DEPLOYMENTS = {
    "VisionEncoder": {"num_replicas": 2, "ray_actor_options": PINNED},
    "AudioEncoder": {"num_replicas": 2, "ray_actor_options": PINNED},
    "Decoder": {"ray_actor_options": {"num_cpus": 0, "resources": {"decoder": 1}}},
    "Ingress": {"ray_actor_options": {"num_cpus": 0, "resources": {"decoder": 0.001}}},
    "GraphController": {"ray_actor_options": {"num_cpus": 0, "resources": {"decoder": 0.001}}},
}
HIDDEN = 256
"""Of the toy model: values of a token's embedding."""
INLINE_BYTES = 100 << 10
"""Ray sends what is smaller beside its message; what is larger lies in a node's object store."""


@dataclass
class Spread:
    """The application and the nodes it runs on."""

    server: Server
    nodes: Nodes

    def report(self) -> dict[str, Any]:
        return dict(httpx.get(f"{self.server.base_url}/v1/graphs", timeout=30, trust_env=False).json())

    def places(self) -> dict[str, list[str]]:
        """Node ids of the ready encoder replicas, by encoder."""
        ready = [r for r in self.report()["replicas"] if r["state"] == "ready" and not r["stale"]]
        return {name: [r["node_id"] for r in ready if r["encoder"] == name] for name in ("vision", "audio")}


@pytest.fixture(scope="module")
def spread(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Spread]:
    with (
        running_nodes(HEAD, ENCODERS, ENCODERS) as nodes,
        running_app(
            tmp_path_factory.mktemp("nodes"),
            deployments=DEPLOYMENTS,
            top={"proxy_location": "HeadOnly"},
            env={"RAY_ADDRESS": nodes.address, "RAY_AUTH_MODE": "disabled"},
        ) as server,
    ):
        yield Spread(server, nodes)


def large(number: int) -> Any:
    """A request whose embeddings are too large to travel inside a message."""
    return user(text(f"Number {number}"), picture(MANY_SLICES, 700 + number))


@pytest.mark.full
@pytest.mark.timeout(600)
def test_embeddings_cross_from_the_encoders_nodes_to_the_decoders(spread: Spread, undivided: Server) -> None:
    """Encoders are where their label is, the decoder elsewhere, and answers equal undivided vLLM's."""
    until = time.monotonic() + 30
    while not (decoders := spread.report()["decoders"]):
        assert time.monotonic() < until, "the decoder never reported"
    (decoder,) = decoders
    assert decoder["node_id"] == spread.nodes.ids[0]
    for places in spread.places().values():
        assert len(places) == 2
        assert set(places) <= set(spread.nodes.ids[1:])
    answer = check_parity(client(spread.server), client(undivided), large(0), times=4)
    assert answer.prompt_tokens * HIDDEN * 4 > INLINE_BYTES
    check_parity(client(spread.server), client(undivided), user(clip(35, 2), picture(MANY_SLICES, 800)))


@pytest.mark.full
@pytest.mark.timeout(900)
async def test_a_node_that_dies_costs_no_request(spread: Spread, undivided: Server) -> None:
    """A node is killed with encodes in hand and cached embeddings on it: both are made again on the other."""
    known = right_alone(undivided, pictures((MANY_SLICES,), seed=40), 40)
    victim = spread.places()["vision"][0]
    (survivor,) = set(spread.nodes.ids[1:]) - {victim}
    async with Load(spread.server, known, at_once=6) as load:
        await load.answered(16)
        await asyncio.to_thread(spread.nodes.kill, victim)
        killed_s = time.monotonic()
        await load.answered(16, within_s=200)
        answers_s = time.monotonic() - killed_s
        await load.answered(48, within_s=200)  # the second time round, those that lay on the dead node too
        whole = {"vision": [survivor] * 2, "audio": [survivor] * 2}
        while await asyncio.to_thread(spread.places) != whole:
            assert time.monotonic() - killed_s < 240, spread.places()
            await asyncio.sleep(0.5)
        whole_s = time.monotonic() - killed_s
        await load.answered(16)
    print(f"node killed: {load.fate.line()}, {load.fate.refused}")
    print(
        f"16 further answers after {answers_s:.1f} s, full strength on the other node after {whole_s:.1f} s"
    )
    assert (load.fate.wrong, load.fate.lost) == ([], [])
