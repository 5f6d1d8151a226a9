"""Sorts what can come out of a Serve call into the kinds that the retry policy knows."""

import ray.exceptions
import ray.serve.exceptions

from deployments.errors import ClientError, TerminalError, TransientError
from policies.retry import ErrorKind

_DIED = (
    ray.exceptions.RayActorError,
    ray.exceptions.WorkerCrashedError,
    ray.exceptions.NodeDiedError,
)
_LOST = (ray.exceptions.ObjectLostError, ray.exceptions.GetTimeoutError)


def classify(error: BaseException) -> tuple[ErrorKind, BaseException]:
    """The kind of a failure, and the error that was raised where it happened."""
    cause: BaseException = error
    while isinstance(cause, ray.exceptions.RayTaskError) and cause.cause is not None:
        cause = cause.cause
    if isinstance(cause, ClientError):
        return ErrorKind.CLIENT, cause
    if isinstance(cause, TerminalError):
        return ErrorKind.TERMINAL, cause
    if isinstance(cause, _DIED):
        return ErrorKind.DIED, _Short("the replica died")
    if isinstance(cause, _LOST):
        return ErrorKind.TRANSIENT, _Short("an embedding was lost on its way")
    if isinstance(cause, TransientError):
        return ErrorKind.TRANSIENT, cause
    if isinstance(cause, ray.serve.exceptions.RayServeException) and "actor died" in str(cause):
        return ErrorKind.DIED, _Short("the replica died")
    return ErrorKind.TRANSIENT, _Short(
        f"{type(cause).__name__}: {str(cause).splitlines()[0][:200] if str(cause) else ''}"
    )


class _Short(Exception):
    """A reason for the client's eyes: no stack trace, no addresses."""
