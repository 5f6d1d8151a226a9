"""The routing simulation: that it is fair, and that routing by shape keeps its promises. Needs nothing."""

from collections import OrderedDict
from dataclasses import replace

import pytest

from benchmarks.routing_sim import Server, Setup, Simulation, compare, oracle_placement, verdicts

SMALL = Setup(requests=8_000, seed=1)


def test_it_meets_the_targets_at_four_replicas_and_sixteen_shapes() -> None:
    """Hit rate near the oracle's, far above power-of-two choices, and no longer queues."""
    met = verdicts(compare(replace(SMALL, trace=trace), seeds=2) for trace in ("uniform", "zipf"))
    assert len(met) == 6
    assert [target for target, ok in met.items() if not ok] == []


def test_the_same_seed_gives_the_same_figures() -> None:
    """A run depends on its arguments alone."""
    setup = replace(SMALL, policy="ours", requests=2_000, routers=2)
    assert Simulation(setup).run() == Simulation(setup).run()
    assert Simulation(setup).run() != Simulation(replace(setup, seed=2)).run()


@pytest.mark.rule("A2")
@pytest.mark.rule("A3")
def test_a_simulated_replica_obeys_the_rules_of_capture() -> None:
    """The second call captures and hits, a full replica captures no more, nothing is evicted."""
    server = Server("r", 1, 2, set(), OrderedDict())
    assert [server.call("a"), server.call("a"), server.call("a")] == [False, True, True]
    assert [server.call("b") for _ in range(3)] == [False, False, False]
    assert server.call("a")


def test_the_oracle_places_every_shape_that_one_replica_can_serve_once() -> None:
    """With as many slots as shapes the oracle holds each once; a shape too popular for one gets copies."""
    placed = oracle_placement(replace(SMALL, trace="zipf"))
    assert sorted(key for held in placed for key in held) == sorted(f"s{i}" for i in range(16))
    placed = oracle_placement(replace(SMALL, trace="zipf", replicas=32, shapes=128))
    copies = [sum(f"s{i}" in held for held in placed) for i in range(128)]
    assert copies[0] > 2
    assert min(copies[:64]) >= 1
