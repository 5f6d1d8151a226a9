"""The life of an encoder replica: its states, one table of legal moves, and one door.

A killed process makes no move: whoever watches it sees it vanish. ``stopped`` straight from
``starting`` or ``warming`` is a replica that was told to leave before it took any work.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType


class ReplicaState(StrEnum):
    """Where an encoder replica stands; the values are those of the public report."""

    STARTING = "starting"
    WARMING = "warming"
    READY = "ready"
    DRAINING = "draining"
    FAILED = "failed"
    STOPPED = "stopped"

    @property
    def takes_work(self) -> bool:
        """Whether requests may run: a warming replica runs only its own stand-ins."""
        return self is ReplicaState.READY

    @property
    def is_leaving(self) -> bool:
        """Whether no new request may be sent, now or later."""
        return self in (ReplicaState.DRAINING, ReplicaState.FAILED, ReplicaState.STOPPED)


MOVES: Mapping[ReplicaState, frozenset[ReplicaState]] = MappingProxyType(
    {
        ReplicaState.STARTING: frozenset({ReplicaState.WARMING, ReplicaState.STOPPED}),
        ReplicaState.WARMING: frozenset({ReplicaState.READY, ReplicaState.FAILED, ReplicaState.STOPPED}),
        ReplicaState.READY: frozenset({ReplicaState.DRAINING, ReplicaState.FAILED}),
        ReplicaState.DRAINING: frozenset({ReplicaState.STOPPED}),
        ReplicaState.FAILED: frozenset({ReplicaState.STOPPED}),
        ReplicaState.STOPPED: frozenset(),
    }
)


@dataclass(frozen=True, slots=True)
class Move:
    """One legal step that was taken, when (seconds, the replica's clock) and why."""

    source: ReplicaState
    target: ReplicaState
    at_s: float
    why: str


class IllegalMove(Exception):
    """A move that the table does not know; carries everything that happened before it."""

    def __init__(self, source: ReplicaState, target: ReplicaState, history: tuple[Move, ...]) -> None:
        super().__init__(source, target, history)
        self.source = source
        self.target = target
        self.history = history

    def __str__(self) -> str:
        path = "; ".join(f"{m.source} -> {m.target} at {m.at_s:.3f} ({m.why})" for m in self.history)
        return f"no encoder replica goes from {self.source} to {self.target}; so far: {path or 'no move'}"


@dataclass(frozen=True, slots=True)
class Lifecycle:
    """A replica's state and how it came there; ``move`` is the only way on."""

    state: ReplicaState = ReplicaState.STARTING
    history: tuple[Move, ...] = ()

    def move(self, target: ReplicaState, *, at_s: float, why: str) -> "Lifecycle":
        """The life after this move. Raises IllegalMove, with the history, when it is not in the table."""
        if target not in MOVES[self.state]:
            raise IllegalMove(self.state, target, self.history)
        return Lifecycle(target, (*self.history, Move(self.state, target, at_s, why)))
