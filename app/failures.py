"""Sorts what can come out of a Serve call into the kinds that the retry policy knows."""

import logging

import ray.exceptions
import ray.serve.exceptions

from deployments.errors import ClientError, TerminalError, TransientError
from policies.retry import ErrorKind

logger = logging.getLogger("ray.serve")

_DIED = (
    ray.exceptions.RayActorError,
    ray.exceptions.WorkerCrashedError,
    ray.exceptions.NodeDiedError,
)
_LOST = (ray.exceptions.ObjectLostError, ray.exceptions.GetTimeoutError)

_PASSING = (ray.exceptions.RayError, ray.serve.exceptions.RayServeException, OSError)


def classify(error: BaseException) -> tuple[ErrorKind, BaseException]:
    """The kind of a failure, and the error that was raised where it happened; logs an unforeseen one."""
    kind, shown = _judged(error)
    if isinstance(shown, _Unforeseen):
        # Its text is for the log: it can hold paths, addresses, other people's words.
        logger.warning("an unforeseen error", exc_info=shown.cause)
    return kind, shown


def kind_of(error: BaseException) -> ErrorKind:
    """The kind alone, for those who leave the telling to somebody else."""
    return _judged(error)[0]


def _judged(error: BaseException) -> tuple[ErrorKind, BaseException]:
    cause: BaseException = error
    while isinstance(cause, ray.exceptions.RayTaskError) and cause.cause is not None:
        cause = cause.cause
    if isinstance(cause, ClientError):
        return ErrorKind.CLIENT, cause
    if isinstance(cause, TerminalError):
        return ErrorKind.TERMINAL, cause
    if isinstance(cause, ray.serve.exceptions.BackPressureError):
        return ErrorKind.FULL, _Short("a queue is full")
    if isinstance(cause, _DIED):
        return ErrorKind.DIED, _Short("the replica died")
    if isinstance(cause, _LOST):
        return ErrorKind.TRANSIENT, _Short("an embedding was lost on its way")
    if isinstance(cause, TransientError):
        return ErrorKind.TRANSIENT, cause
    if isinstance(cause, ray.serve.exceptions.RayServeException) and "actor died" in str(cause):
        return ErrorKind.DIED, _Short("the replica died")
    raised_by_us = isinstance(error, ray.exceptions.RayTaskError) and not isinstance(cause, _PASSING)
    kind = ErrorKind.FAULT if raised_by_us else ErrorKind.TRANSIENT
    return kind, _Unforeseen(cause)


class _Short(Exception):
    """A reason for the client's eyes: no stack trace, no addresses."""


class _Unforeseen(_Short):
    """Names the kind of an inner fault and no more."""

    def __init__(self, cause: BaseException) -> None:
        super().__init__(f"an inner fault ({type(cause).__name__}), see the server's log")
        self.cause = cause
