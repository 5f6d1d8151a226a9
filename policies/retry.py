"""Whether an encode that failed is tried again, when, and away from which replica."""

from dataclasses import dataclass
from enum import StrEnum


class ErrorKind(StrEnum):
    """What went wrong, as far as trying again is concerned."""

    CLIENT = "client"  # the request is at fault: the same everywhere
    TRANSIENT = "transient"  # this attempt failed, the replica may be fine
    TERMINAL = "terminal"  # that replica can do no more work
    DIED = "died"  # that replica is gone
    FULL = "full"  # every queue is as long as it may be: trying again at once would only lengthen it
    FAULT = "fault"  # an error that nobody foresaw: likely the same everywhere


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """The n-th wait is ``first_backoff_s * backoff_growth ** (n - 1)``, at most ``max_backoff_s``,
    of which jitter takes up to half away. ``max_attempts`` counts the first try.
    """

    max_attempts: int = 6
    max_fault_attempts: int = 2  # of an unforeseen error, which every attempt would repeat
    first_backoff_s: float = 0.05
    backoff_growth: float = 3.0
    max_backoff_s: float = 2.0

    def __post_init__(self) -> None:
        if self.max_attempts < 1:
            raise ValueError(f"max_attempts must be at least 1, not {self.max_attempts}")
        if not 0 <= self.first_backoff_s <= self.max_backoff_s or self.backoff_growth < 1:
            raise ValueError("need 0 <= first_backoff_s <= max_backoff_s and backoff_growth >= 1")

    def backoff_s(self, number: int, jitter: float) -> float:
        """The ``number``-th wait (from 1); ``jitter`` is in [0, 1)."""
        wait_s = self.first_backoff_s
        for _ in range(number - 1):
            wait_s = min(wait_s * self.backoff_growth, self.max_backoff_s)
        return wait_s * (1.0 - jitter / 2)


@dataclass(frozen=True, slots=True)
class Failure:
    """The attempt that just failed. ``attempts`` counts it; ``streamed`` says whether the client has
    already been sent a part of the answer; ``client_status`` is the status of a client error.
    """

    kind: ErrorKind
    attempts: int
    deadline_s: float
    replica_id: str | None = None
    excluded: frozenset[str] = frozenset()
    streamed: bool = False
    client_status: int = 400


@dataclass(frozen=True, slots=True)
class Retry:
    """Try again ``after_s`` seconds from now, on none of ``exclude`` if there is another."""

    after_s: float
    exclude: frozenset[str]


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Answer with this HTTP status (or, in mid-stream, with an error event that says the reason)."""

    status: int
    reason: str


def next_step(
    failure: Failure, now_s: float, *, jitter: float, policy: RetryPolicy | None = None
) -> Retry | GiveUp:
    """Decide what follows a failed attempt; ``jitter`` is a random number in [0, 1).

    A replica that is gone or failed is left at once the first time; after that every wait grows, for
    its replacement needs seconds.
    """
    policy = policy or RetryPolicy()
    if failure.kind is ErrorKind.CLIENT:
        return GiveUp(failure.client_status, "the request is at fault")
    if failure.kind is ErrorKind.FULL:
        return GiveUp(429, _CAUSES[ErrorKind.FULL])
    if failure.streamed:
        return GiveUp(503, f"{_CAUSES[failure.kind]} after a part of the answer had been sent")
    if now_s >= failure.deadline_s:
        return GiveUp(504, "the request's deadline has passed")
    fault = failure.kind is ErrorKind.FAULT
    if failure.attempts >= (policy.max_fault_attempts if fault else policy.max_attempts):
        return GiveUp(503, f"{failure.attempts} attempts failed; in the last, {_CAUSES[failure.kind]}")
    lost = failure.kind in (ErrorKind.TERMINAL, ErrorKind.DIED)
    exclude = failure.excluded
    if failure.replica_id is not None:
        exclude = exclude | {failure.replica_id}
    waits = failure.attempts - 1 if lost else failure.attempts
    after_s = policy.backoff_s(waits, jitter) if waits > 0 else 0.0
    if now_s + after_s >= failure.deadline_s:
        return GiveUp(503, f"{_CAUSES[failure.kind]}, and the deadline leaves no time for another attempt")
    return Retry(after_s, exclude)


_CAUSES = {
    ErrorKind.FULL: "too many requests wait; try again shortly",
    ErrorKind.FAULT: "something went wrong inside",
    ErrorKind.TRANSIENT: "the attempt failed in passing",
    ErrorKind.TERMINAL: "the replica had failed for good",
    ErrorKind.DIED: "the replica died",
}
