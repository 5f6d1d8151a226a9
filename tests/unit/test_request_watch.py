"""What a request that ended is counted as."""

import pytest
import ray.exceptions
from starlette.requests import ClientDisconnect

from app.http_errors import HttpError
from app.request_watch import CLIENT_GONE, Watched


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (ClientDisconnect(), CLIENT_GONE),
        (ray.exceptions.TaskCancelledError(), CLIENT_GONE),
        (HttpError(429, "full"), 429),
        (ValueError("ours"), 500),
    ],
)
def test_a_request_is_counted_by_how_it_ended(error: Exception, status: int) -> None:
    """A client that has gone is no fault of ours, whoever noticed; a refusal counts as its status."""
    request = Watched()
    request.failed(error)
    assert request.status == status
