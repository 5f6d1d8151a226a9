"""The id of a request: which are kept, and where it goes."""

from typing import Any

import pytest
from ray import serve

from app.request_id import RequestId, current, of_no_request, settled


@pytest.mark.parametrize(
    "given",
    [b"a", b"2f1d6c5e-8a8b-4f9e-9f43-0c7a8f7a1b2c", b"req_7:edge/3=x+y@z~1.0", b"x" * 128],
)
def test_a_sane_id_is_kept(given: bytes) -> None:
    """Up to 128 printable characters without quotes and spaces are the id as they are."""
    assert settled([given]) == (given.decode(), True)
    assert settled([given, given]) == (given.decode(), True)


@pytest.mark.parametrize(
    "given",
    [
        [],
        [b""],
        [b"x" * 129],
        [b"a b"],
        [b"a\tb"],
        [b'a"b'],
        [b"a\n"],
        ["ä".encode()],
        [b"\xff"],
        [b"a", b"b"],
    ],
)
def test_any_other_is_replaced(given: list[bytes]) -> None:
    """What is missing, long, odd or given twice in two ways is replaced, each time by another id."""
    (one, kept), (two, _) = settled(given), settled(given)
    assert not kept
    assert one != two
    assert settled([one.encode()]) == (one, True)


async def through(*headers: tuple[bytes, bytes]) -> tuple[str, list[tuple[bytes, bytes]]]:
    """The id that the application saw, and the headers of its response; the proxy says ``from-proxy``."""
    seen: list[str] = []
    sent: list[Any] = []

    async def application(scope: Any, receive: Any, send: Any) -> None:
        seen.append(current())
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def send(message: Any) -> None:
        sent.append(message)

    serve.context._serve_request_context.set(serve.context._RequestContext(request_id="from-proxy"))
    await RequestId(application)({"type": "http", "headers": list(headers)}, None, send)  # type: ignore[arg-type]
    return seen[0], sent[0]["headers"]


async def test_the_id_is_serves_where_that_is_sane() -> None:
    """Then the context stays as it is and the response is the proxy's to name."""
    assert await through((b"x-request-id", b"from-proxy")) == ("from-proxy", [])


async def test_a_replaced_id_is_in_the_context_and_in_the_response() -> None:
    """What calls of handles pass on and what records say is what the client is told."""
    seen, headers = await through((b"x-request-id", b"from proxy"))
    assert seen != "from-proxy"
    assert headers == [(b"x-request-id", seen.encode())]


def test_work_for_several_requests_has_a_name_and_no_owner() -> None:
    """Its records name the request that began it; Serve cannot find it among what that request began."""
    before = serve.context._get_serve_request_context()
    serve.context._set_request_context(request_id="mine", _internal_request_id="internal", route="/x")
    context = of_no_request()
    assert context.run(current) == "mine"
    inside = context.run(serve.context._get_serve_request_context)
    assert (inside._internal_request_id, inside.route) == ("", "/x")
    assert serve.context._get_serve_request_context()._internal_request_id == "internal"
    serve.context._serve_request_context.set(before)
