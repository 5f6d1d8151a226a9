"""Which encoder replicas a request should go to: those that hold a graph for its shape, within a load bound.

Graphs are few, never evicted and keyed by exact shape, so a slot spent on a shape that another
replica holds is one shape more that runs eagerly for ever. A shape that nobody holds is therefore sent
to one replica, its home, on which routers agree without talking; and what overflows from a home goes
to replicas that cannot capture it before it goes to those that can.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import blake2b
from types import MappingProxyType

from policies.lifecycle import ReplicaState
from policies.stats import UNKNOWN_KEY

NOWHERE: Mapping[str, str] = MappingProxyType({})

Ranks = list[list[str]]


@dataclass(frozen=True, slots=True)
class RoutedReplica:
    """One replica as a router sees it: its last report, and the queue length known now.

    ``captured`` holds media keys; ``free_slots`` is how many more graphs it may capture.
    """

    replica_id: str
    queue_len: int
    state: ReplicaState = ReplicaState.READY
    graphs_enabled: bool = True
    captured: frozenset[str] = frozenset()
    free_slots: int = 0

    @property
    def can_capture(self) -> bool:
        """Whether a key new to this replica could still get a graph."""
        return self.graphs_enabled and self.free_slots > 0


def rank(
    replicas: Sequence[RoutedReplica],
    key: str,
    *,
    bound: int,
    homes: Mapping[str, str] = NOWHERE,
    avoid: frozenset[str] = frozenset(),
) -> Ranks:
    """Replica ids in ranks, best first; within a rank the one with the shortest queue is meant.

    Args:
        replicas: every candidate; those that are leaving are left out.
        key: the request's media key; ``unknown`` ranks by load alone.
        bound: a replica whose queue is longer than the shortest by more than this ranks behind the
            others, whatever it holds: affinity never waits while another is that much freer.
        homes: replica ids of keys that were given a home but are in no report yet.
        avoid: replicas where this request failed before; they rank last.
    """
    live = [r for r in replicas if not r.state.is_leaving]
    fresh = [r for r in live if r.replica_id not in avoid]
    shortest = min((r.queue_len for r in fresh), default=0)
    within = [r for r in fresh if r.queue_len - shortest <= bound]
    beyond = [r for r in fresh if r.queue_len - shortest > bound]
    holders = {r.replica_id for r in live if _holds(r, key, homes)}
    best = [within] if key == UNKNOWN_KEY else _by_affinity(within, key, holders, _promised(live, homes))
    avoided = [r for r in live if r.replica_id in avoid]
    return [
        [r.replica_id for r in sorted(group, key=lambda r: r.queue_len)]
        for group in (*best, beyond, avoided)
        if group
    ]


def _holds(replica: RoutedReplica, key: str, homes: Mapping[str, str]) -> bool:
    if not replica.graphs_enabled:
        return False
    return key in replica.captured or (replica.can_capture and homes.get(key) == replica.replica_id)


def _promised(live: Sequence[RoutedReplica], homes: Mapping[str, str]) -> Counter[str]:
    """How many free slots of each replica are meant for keys that have their home there."""
    captured = {r.replica_id: r.captured for r in live}
    return Counter(home for key, home in homes.items() if key not in captured.get(home, ()))


def _by_affinity(
    within: Sequence[RoutedReplica], key: str, holders: set[str], promised: Counter[str]
) -> list[list[RoutedReplica]]:
    """Holders first; then, for a key that nobody holds, homes before the rest, and for overflow the
    rest before homes. One home a rank: two replicas that both see a new key would both capture it.
    """
    first, homes, rest = [], [], []
    for replica in within:
        if replica.replica_id in holders:
            first.append(replica)
        elif replica.can_capture:
            homes.append(replica)
        else:
            rest.append(replica)
    homes.sort(key=lambda r: _weight(key, r.replica_id), reverse=True)
    homes.sort(key=lambda r: r.free_slots <= promised[r.replica_id])
    single = [[home] for home in homes]
    return [first, rest, *single] if holders else [first, *single, rest]


@lru_cache(maxsize=65536)
def _weight(key: str, replica_id: str) -> bytes:
    """Rendezvous hash: the same in every process, and a replica that leaves moves only its own keys."""
    return blake2b(f"{key}\0{replica_id}".encode(), digest_size=8).digest()


@dataclass(frozen=True, slots=True)
class Homes:
    """Where one router sent new keys lately. Reports lag by a period, in which these decide.

    A home is forgotten after ``ttl_s``, so that keys that came once reserve no slot for long.
    """

    ttl_s: float = 3.0
    given: Mapping[str, tuple[str, float]] = field(default_factory=dict)

    def at(self, now_s: float) -> dict[str, str]:
        """Replica id by key, of those not yet forgotten."""
        return {key: home for key, (home, at_s) in self.given.items() if now_s - at_s < self.ttl_s}


def route(
    replicas: Sequence[RoutedReplica],
    key: str,
    homes: Homes,
    now_s: float,
    *,
    bound: int,
    avoid: frozenset[str] = frozenset(),
) -> tuple[Ranks, Homes]:
    """Rank, and remember the home that a new key was given thereby."""
    known = homes.at(now_s)
    ranks = rank(replicas, key, bound=bound, homes=known, avoid=avoid)
    if key == UNKNOWN_KEY or not ranks or any(_holds(r, key, known) for r in replicas):
        return ranks, homes
    best = next(r for r in replicas if r.replica_id == ranks[0][0])
    if not best.can_capture:
        return ranks, homes
    kept = {k: homes.given[k] for k in known}
    return ranks, Homes(homes.ttl_s, {**kept, key: (best.replica_id, now_s)})
