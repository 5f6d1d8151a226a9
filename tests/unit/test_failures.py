"""What comes out of a Serve call is sorted rightly, and tells the client no internals."""

import pickle

import pytest
import ray.exceptions
import ray.serve.exceptions

from app.failures import classify, kind_of
from deployments.errors import ClientError, GraphServeError, TerminalError, TerminalGraphError, TransientError
from policies.retry import ErrorKind


def raised_remotely(error: Exception) -> BaseException:
    """The exception as Ray hands it to a caller in another process."""
    wrapped = ray.exceptions.RayTaskError("encode", "Traceback: /secret/path.py", error)
    remote: BaseException = pickle.loads(pickle.dumps(wrapped)).as_instanceof_cause()
    return remote


@pytest.mark.parametrize("wrap", [lambda e: e, raised_remotely], ids=["local", "remote"])
@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ClientError("bad", "messages[0]", 413, "media_limit"), ErrorKind.CLIENT),
        (TerminalError("gone", "replica-1"), ErrorKind.TERMINAL),
        (TerminalGraphError("vision", "capture"), ErrorKind.TERMINAL),
        (TransientError("busy", "replica-1"), ErrorKind.TRANSIENT),
        (TimeoutError("inside the replica"), ErrorKind.TRANSIENT),
    ],
)
def test_kinds(error: Exception, kind: ErrorKind, wrap) -> None:  # type: ignore[no-untyped-def]
    """An error means the same whether it was raised here or in a replica."""
    assert classify(wrap(error))[0] is kind
    assert kind_of(wrap(error)) is kind


@pytest.mark.parametrize("error", [GraphServeError("odd"), ValueError("secret"), AttributeError("x.y")])
def test_what_our_code_raises_unforeseen_is_a_fault(error: Exception) -> None:
    """A replica's own error would come again at every attempt; its text stays in the log."""
    kind, reason = classify(raised_remotely(error))
    assert kind is ErrorKind.FAULT
    assert "secret" not in str(reason)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ray.exceptions.ActorDiedError(), ErrorKind.DIED),
        (ray.exceptions.ActorUnavailableError("away", None), ErrorKind.DIED),
        (ray.exceptions.WorkerCrashedError(), ErrorKind.DIED),
        (ray.exceptions.ObjectLostError("00" * 28, None, ""), ErrorKind.TRANSIENT),
        (ray.exceptions.OwnerDiedError("00" * 28, None, ""), ErrorKind.TRANSIENT),
        (ray.exceptions.GetTimeoutError("late"), ErrorKind.TRANSIENT),
        (
            ray.serve.exceptions.RayServeException("an upstream actor died before finishing a task"),
            ErrorKind.DIED,
        ),
        (ray.serve.exceptions.RayServeException("something else"), ErrorKind.TRANSIENT),
        (ray.serve.exceptions.BackPressureError(8, 8), ErrorKind.FULL),
    ],
)
def test_kinds_of_rays_own_errors(error: Exception, kind: ErrorKind) -> None:
    """A dead process is told from a lost object, and both from bad media."""
    assert classify(error)[0] is kind


def test_a_client_error_keeps_all_it_says_through_ray() -> None:
    """Message, path, status and code of bad media survive the way from the replica."""
    cause = classify(raised_remotely(ClientError("bad", "messages[0]", 413, "media_limit")))[1]
    assert isinstance(cause, ClientError)
    assert (cause.message, cause.param, cause.status, cause.code) == (
        "bad",
        "messages[0]",
        413,
        "media_limit",
    )


@pytest.mark.parametrize("error", [ValueError("first line\nTraceback /x.py\nmore"), ValueError("x" * 5000)])
def test_reasons_for_clients_are_one_short_line(error: Exception) -> None:
    """No stack trace and no endless text reaches a client."""
    reason = str(classify(raised_remotely(error))[1])
    assert "\n" not in reason
    assert "Traceback" not in reason
    assert len(reason) < 300


def test_errors_pickle_whole() -> None:
    """Every error of ours crosses a process border with its attributes."""
    for error in (
        ClientError("m", "p", 404, "c"),
        TransientError("m", "replica-1"),
        TerminalError("m", "replica-1"),
        TerminalGraphError("vision", "cause"),
    ):
        copy = pickle.loads(pickle.dumps(error))
        assert (type(copy), str(copy), vars(copy)) == (type(error), str(error), vars(error))
