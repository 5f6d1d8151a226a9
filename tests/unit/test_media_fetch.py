"""Needs the loopback: media from outside, against a real HTTP server that misbehaves on request."""

import asyncio
import base64
import datetime
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.media_fetch import FetchOptions, MediaFetcher
from deployments.errors import ClientError
from policies.limits import MediaLimits

BODY = b"\x89PNG and the rest of it"
LIMITS = MediaLimits(
    max_bytes=10_000, first_byte_timeout_s=0.5, fetch_timeout_s=1.0, connect_timeout_s=0.5, max_redirects=2
)
LOOPBACK = FetchOptions(allow_networks=("127.0.0.0/8",))

Writer = asyncio.StreamWriter


@dataclass
class Origin:
    """A server of raw bytes: each path has a function that writes the response; requests are kept."""

    port: int = 0
    requests: list[str] = field(default_factory=list)
    routes: dict[str, Callable[[Writer], Awaitable[None]]] = field(default_factory=dict)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    def url(self, path: str, host: str = "127.0.0.1") -> str:
        return f"http://{host}:{self.port}{path}"

    def answer(self, path: str, head: str, body: bytes = b"") -> None:
        async def write(writer: Writer) -> None:
            writer.write(head.replace("\n", "\r\n").encode() + b"\r\n\r\n" + body)

        self.routes[path] = write

    async def __call__(self, reader: asyncio.StreamReader, writer: Writer) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            self.requests.append(head)
            await self.routes[head.split()[1]](writer)
            await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            self._tasks.discard(task)
            writer.close()

    async def close(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


@pytest.fixture
async def origin() -> AsyncIterator[Origin]:
    server_state = Origin()
    server = await asyncio.start_server(server_state, "127.0.0.1", 0)
    server_state.port = server.sockets[0].getsockname()[1]
    server_state.answer("/ok", f"HTTP/1.1 200 OK\nContent-Type: text/html\nContent-Length: {len(BODY)}", BODY)
    yield server_state
    server.close()
    await server_state.close()


async def fails(url: str, options: FetchOptions = LOOPBACK, **more: object) -> ClientError:
    with pytest.raises(ClientError) as caught:
        await MediaFetcher(options, LIMITS, **more).fetch(url)  # type: ignore[arg-type]
    assert caught.value.message.startswith("this part ")
    return caught.value


# ---- what works ----


async def test_http_gives_the_bytes(origin: Origin) -> None:
    """A 200 gives its body whatever its content type says, asked for without compression or credentials."""
    assert await MediaFetcher(LOOPBACK, LIMITS).fetch(origin.url("/ok#y")) == BODY
    head = origin.requests[0].lower()
    assert f"host: 127.0.0.1:{origin.port}" in head
    assert "accept-encoding: identity" in head
    assert not any(word in head for word in ("authorization", "cookie", "referer"))


async def test_redirects_are_followed(origin: Origin) -> None:
    """A relative and an absolute redirect within the limit lead to the body."""
    origin.answer("/a", "HTTP/1.1 302 Found\nLocation: /b\nContent-Length: 0")
    origin.answer("/b", f"HTTP/1.1 307 Temporary\nLocation: {origin.url('/ok')}\nContent-Length: 0")
    assert await MediaFetcher(LOOPBACK, LIMITS).fetch(origin.url("/a")) == BODY


async def test_environment_proxies_are_not_used(origin: Origin, monkeypatch: pytest.MonkeyPatch) -> None:
    """A proxy in the environment is ignored: it would resolve the name unchecked."""
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    assert await MediaFetcher(LOOPBACK, LIMITS).fetch(origin.url("/ok")) == BODY


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        (f"data:image/png;base64,{base64.b64encode(BODY).decode()}", BODY),
        (f"DATA:;base64,{base64.b64encode(BODY).decode()}", BODY),
        ("data:image/png;name=a.png;base64,aGk%3D", b"hi"),
        ("data:,a%20b%FF", b"a b\xff"),
        ("data:text/plain;charset=utf-8,%00", b"\0"),
    ],
)
async def test_data_urls(url: str, expected: bytes) -> None:
    """data: URLs are read by RFC 2397, base64 and percent-encoded."""
    assert await MediaFetcher(FetchOptions(), LIMITS).fetch(url) == expected


TAKES_DATA = MediaFetcher(FetchOptions(), LIMITS)
BASE64_LETTERS = st.text(alphabet="AZaz09+/=-_ \n\t\u00e9%", max_size=9)


@given(data=st.binary(max_size=9), text=BASE64_LETTERS, padding=st.integers(0, 4), flip=st.booleans())
def test_base64_is_what_python_takes_for_it(data: bytes, text: str, padding: int, flip: bool) -> None:
    """Whether a field is base64, and of what, is as the standard library says, strictly."""
    field = (base64.b64encode(data).decode() if flip else text) + "=" * padding
    try:
        expected = base64.b64decode(field, validate=True)
    except ValueError:
        expected = b""  # which is refused too
    if expected:
        assert asyncio.run(TAKES_DATA.from_base64(field)) == expected
    else:
        with pytest.raises(ClientError):
            asyncio.run(TAKES_DATA.from_base64(field))


# ---- where it may not go ----


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1",
        "127.1",
        "2130706433",
        "0x7f000001",
        "0177.0.0.1",
        "localhost",
        "localhost.",
        "LOCALHOST",
        "[::1]",
        "[::ffff:127.0.0.1]",
        "[::ffff:7f00:1]",
        "0.0.0.0",
        "0",
        "[::]",
    ],
)
async def test_this_machine_is_refused_in_every_spelling(origin: Origin, host: str) -> None:
    """By default nothing connects to the loopback, however it is written, and no byte arrives there."""
    error = await fails(origin.url("/ok", host), FetchOptions())
    assert (error.status, origin.requests) == (400, [])


@pytest.mark.parametrize(
    "host", ["169.254.169.254", "10.0.0.1", "100.64.0.1", "[fd00:ec2::254]", "[64:ff9b::a9fe:a9fe]"]
)
async def test_internal_addresses_are_refused(host: str) -> None:
    """Metadata services and private networks are refused at once, without a connection attempt."""
    error = await fails(f"http://{host}/latest/meta-data", FetchOptions())
    assert (error.status, error.code) == (400, "media_host")


async def test_a_redirect_is_checked_like_the_first_request(origin: Origin) -> None:
    """A redirect from an allowed address to an internal one is refused before a byte is sent there."""
    origin.answer(
        "/evil", f"HTTP/1.1 302 Found\nLocation: http://127.0.0.2:{origin.port}/ok\nContent-Length: 0"
    )
    error = await fails(origin.url("/evil"), FetchOptions(allow_networks=("127.0.0.1/32",)))
    assert (error.status, error.code, len(origin.requests)) == (400, "media_host", 1)


@pytest.mark.parametrize(
    "location", ["file:///etc/passwd", "ftp://127.0.0.1/x", "data:,x", "gopher://x/", "http://"]
)
async def test_a_redirect_cannot_change_to_another_kind_of_url(origin: Origin, location: str) -> None:
    """Only http and https URLs can be redirected to."""
    origin.answer("/r", f"HTTP/1.1 302 Found\nLocation: {location}\nContent-Length: 0")
    assert (await fails(origin.url("/r"))).status == 400


async def test_the_address_checked_is_the_address_connected_to(origin: Origin) -> None:
    """A name that changes its address between two look-ups is looked up once, and what was checked counts."""
    answers = [["127.0.0.1"], ["127.0.0.2"]]

    async def rebinding(host: str, port: int) -> list[str]:
        assert host == "media.example"
        return answers.pop(0)

    options = FetchOptions(allow_networks=("127.0.0.1/32",))
    fetcher = MediaFetcher(options, LIMITS, rebinding)
    assert await fetcher.fetch(origin.url("/ok", "media.example")) == BODY
    assert f"host: media.example:{origin.port}" in origin.requests[0].lower()
    with pytest.raises(ClientError, match="public internet"):
        await fetcher.fetch(origin.url("/ok", "media.example"))
    assert (len(answers), len(origin.requests)) == (0, 1)


async def test_one_internal_address_refuses_the_name(origin: Origin) -> None:
    """A name with a public and an internal address is refused, in either order."""
    for addresses in (["127.0.0.1", "10.0.0.1"], ["10.0.0.1", "127.0.0.1"]):

        async def mixed(host: str, port: int, found: list[str] = addresses) -> list[str]:
            return found

        assert (await fails(origin.url("/ok", "mixed.example"), resolve=mixed)).code == "media_host"
    assert origin.requests == []


async def test_the_next_address_is_tried(origin: Origin) -> None:
    """When the first of several allowed addresses does not answer the next one is used."""

    async def two(host: str, port: int) -> list[str]:
        return ["127.0.0.9", "127.0.0.1"]

    assert await MediaFetcher(LOOPBACK, LIMITS, two).fetch(origin.url("/ok", "two.example")) == BODY


async def test_host_lists(origin: Origin) -> None:
    """The deny-list wins over the allow-list; a leading dot covers the names below, and only those."""

    async def here(host: str, port: int) -> list[str]:
        return ["127.0.0.1"]

    options = replace(
        LOOPBACK, allow_hosts=(".good.example", "one.example"), deny_hosts=("bad.good.example",)
    )
    fetcher = MediaFetcher(options, LIMITS, here)
    for host in ("good.example", "a.good.example", "A.Good.Example.", "one.example"):
        assert await fetcher.fetch(origin.url("/ok", host)) == BODY
    for host in (
        "bad.good.example",
        "BAD.good.example.",
        "a.one.example",
        "evilgood.example",
        "other.example",
    ):
        assert (await fails(origin.url("/ok", host), options, resolve=here)).code == "media_host"


@pytest.mark.parametrize(
    "url",
    [
        "http://user:secret@127.0.0.1/x",
        "http://user@127.0.0.1/x",
        "ftp://127.0.0.1/x",
        "file:///etc/passwd",
        "//127.0.0.1/x",
        "nonsense",
        "",
        "http://",
        "http:///x",
        "http://[::1/x",
        "http://127.0.0.1:99999/",
        "http://a b/",
        "https//x",
        "data:no-comma",
        "data:;base64,not base64!",
        "data:;base64,",
        "data:,",
        "http://" + "a" * 300 + ".example/",
        "http://\x00.example/",
        "http://x" * 20000,
    ],
)
async def test_urls_that_are_refused(url: str) -> None:
    """Credentials, other schemes and everything that is no URL are a 400."""
    error = await fails(url)
    assert error.status == 400
    assert "secret" not in error.message


async def test_a_scheme_can_be_switched_off() -> None:
    """Schemes that the options leave out are refused."""
    options = FetchOptions(schemes=("https",))
    assert (await fails("http://example.com/", options)).status == 400
    assert (await fails("data:,x", options)).status == 400


# ---- how much and how long ----


async def test_declared_and_real_sizes_are_limited(origin: Origin) -> None:
    """A body over the limit is a 413, by its declared length without reading it and by its real one."""
    origin.answer("/declared", "HTTP/1.1 200 OK\nContent-Length: 10001", b"x")
    origin.answer("/real", "HTTP/1.1 200 OK", b"x" * 10_001)
    origin.answer("/fits", "HTTP/1.1 200 OK", b"x" * 10_000)
    assert (await fails(origin.url("/declared"))).status == 413
    assert (await fails(origin.url("/real"))).status == 413
    assert len(await MediaFetcher(LOOPBACK, LIMITS).fetch(origin.url("/fits"))) == 10_000


async def test_data_urls_are_limited() -> None:
    """A data: URL over the limit is a 413, in either encoding."""
    assert (await fails("data:;base64," + "A" * 20_000)).status == 413
    assert (await fails("data:," + "x" * 10_001)).status == 413
    assert (await fails("data:," + "x" * 40_000)).status == 413


async def test_an_endless_body_is_cut(origin: Origin) -> None:
    """An endless body is a 413 as soon as the limit is passed, and the connection is closed."""
    closed = asyncio.Event()

    async def endless(writer: Writer) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        try:
            while True:
                writer.write(b"400\r\n" + b"x" * 1024 + b"\r\n")
                await writer.drain()
        finally:
            closed.set()

    origin.routes["/endless"] = endless
    assert (await fails(origin.url("/endless"))).status == 413
    await asyncio.wait_for(closed.wait(), 2)


async def _drip(writer: Writer, start: bytes, piece: bytes) -> None:
    writer.write(start)
    while True:
        writer.write(piece)
        await writer.drain()
        await asyncio.sleep(0.05)


@pytest.mark.parametrize(
    ("start", "piece"),
    [
        (b"", b""),
        (b"HTTP/1.1 200 OK\r\n", b"X-A: b\r\n"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9999\r\n\r\n", b"x"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9999\r\n\r\n", b""),
        (b"HTTP/1.1 103 Early Hints\r\n\r\n", b"HTTP/1.1 103 Early Hints\r\n\r\n"),
    ],
    ids=["silent", "slow headers", "slow body", "silent body", "endless hints"],
)
async def test_a_slow_origin_is_a_504(origin: Origin, start: bytes, piece: bytes) -> None:
    """An origin that is silent or slow, in headers or in body, ends in a 504 within the limits."""
    origin.routes["/slow"] = lambda writer: _drip(writer, start, piece)
    begun = asyncio.get_running_loop().time()
    error = await fails(origin.url("/slow"))
    assert (error.status, error.code) == (504, "media_timeout")
    assert asyncio.get_running_loop().time() - begun < 2


async def test_a_slow_name_server_is_a_504() -> None:
    """A name that takes for ever to resolve ends in a 504 within the limits."""

    async def never(host: str, port: int) -> list[str]:
        await asyncio.Event().wait()
        return []

    assert (await fails("http://slow.example/", resolve=never)).status == 504


async def test_too_many_redirects(origin: Origin) -> None:
    """A redirect loop is a 400 after the configured number of hops."""
    origin.answer("/loop", "HTTP/1.1 302 Found\nLocation: /loop\nContent-Length: 0")
    assert (await fails(origin.url("/loop"))).status == 400
    assert len(origin.requests) == LIMITS.max_redirects + 1


@pytest.mark.parametrize(
    ("head", "body"),
    [
        ("HTTP/1.1 404 Not Found\nContent-Length: 2", b"no"),
        ("HTTP/1.1 206 Partial\nContent-Length: 2", b"no"),
        ("HTTP/1.1 200 OK\nContent-Encoding: gzip\nContent-Length: 2", b"no"),
        ("HTTP/1.1 200 OK\nContent-Length: 0", b""),
        ("HTTP/1.1 200 OK\nContent-Length: 50", b"cut short"),
        ("HTTP/1.1 200 OK\nTransfer-Encoding: chunked", b"zz\r\n"),
        ("HTTP/1.1 302 Found\nContent-Length: 0", b""),
        ("HTTP/1.1 302 Found\nContent-Length: 0\nLocation: http://[", b""),
        ("SMTP ready", b""),
        ("HTTP/1.1 200 OK\n" + "X-Long: " + "a" * 200_000, b""),
    ],
)
async def test_answers_that_are_no_media(origin: Origin, head: str, body: bytes) -> None:
    """Error statuses, compression, cut and malformed responses are a 400."""
    origin.answer("/odd", head, body)
    assert (await fails(origin.url("/odd"))).status == 400


async def test_no_server_is_a_400() -> None:
    """A closed port and a name that does not exist are a 400."""
    server = await asyncio.start_server(lambda r, w: None, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    server.close()
    await server.wait_closed()
    assert (await fails(f"http://127.0.0.1:{port}/")).status == 400

    async def unknown(host: str, port: int) -> list[str]:
        raise OSError("name or service not known")

    assert (await fails("http://nowhere.example/", resolve=unknown)).status == 400


async def test_a_cancelled_fetch_closes_its_connection(origin: Origin) -> None:
    """A client that goes away ends the fetch: the origin sees its connection closed."""
    arrived, closed = asyncio.Event(), asyncio.Event()

    async def wait(writer: Writer) -> None:
        arrived.set()
        try:
            await _drip(writer, b"HTTP/1.1 200 OK\r\nContent-Length: 9999\r\n\r\n", b"x")
        finally:
            closed.set()

    origin.routes["/wait"] = wait
    task = asyncio.create_task(MediaFetcher(LOOPBACK, LIMITS).fetch(origin.url("/wait")))
    await asyncio.wait_for(arrived.wait(), 2)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.wait_for(closed.wait(), 2)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A self-signed certificate with its key, for media.example."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "media.example")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("media.example")]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    path = tmp_path_factory.mktemp("tls") / "both.pem"
    path.write_bytes(made.public_bytes(pem) + private)
    return path


async def _here(host: str, port: int) -> list[str]:
    return ["127.0.0.1"]


async def test_tls_checks_the_name_of_the_url(origin: Origin, certificate: Path) -> None:
    """https connects to the checked address, shows the URL's name there, and holds the certificate to it."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    seen: list[str | None] = []
    context.sni_callback = lambda connection, name, _: seen.append(name)
    origin.answer("/down", "HTTP/1.1 302 Found\nLocation: http://media.example/ok\nContent-Length: 0")
    server = await asyncio.start_server(origin, "127.0.0.1", 0, ssl=context)
    address = f"media.example:{server.sockets[0].getsockname()[1]}"
    trusting = replace(LOOPBACK, ca_file=str(certificate))
    assert await MediaFetcher(trusting, LIMITS, _here).fetch(f"https://{address}/ok") == BODY
    assert seen == ["media.example"]
    assert f"host: {address}" in origin.requests[0].lower()
    assert (await fails(f"https://{address}/down", trusting, resolve=_here)).status == 400
    other = f"https://other.example:{address.split(':')[1]}/ok"
    assert (await fails(other, trusting, resolve=_here)).status == 400
    assert (await fails(f"https://{address}/ok", LOOPBACK, resolve=_here)).status == 400
    assert len(origin.requests) == 2
    server.close()


@pytest.mark.parametrize(("answer", "status"), [(b"HTTP/1.1 200 OK\r\n\r\n", 400), (b"", 504)])
async def test_a_server_that_speaks_no_tls(answer: bytes, status: int) -> None:
    """Where https meets plain HTTP or silence it ends in a 4xx or 504, and the connection is closed."""
    closed = asyncio.Event()

    async def plain(reader: asyncio.StreamReader, writer: Writer) -> None:
        writer.write(answer)
        while await reader.read(100):
            pass
        closed.set()
        writer.close()

    server = await asyncio.start_server(plain, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    assert (await fails(f"https://127.0.0.1:{port}/")).status == status
    await asyncio.wait_for(closed.wait(), 2)
    server.close()


# ---- files ----


async def test_files_below_the_folder_only(tmp_path: Path) -> None:
    """file: reads below the configured folder, links followed, and nothing else; it is off without one."""
    root, outside = tmp_path / "root", tmp_path / "outside"
    (root / "sub").mkdir(parents=True)
    outside.write_bytes(b"secret")
    (root / "sub" / "a b.png").write_bytes(BODY)
    (root / "good").symlink_to(root / "sub" / "a b.png")
    (root / "bad").symlink_to(outside)
    (root / "empty").touch()
    options = FetchOptions(file_root=str(root))
    fetcher = MediaFetcher(options, LIMITS)
    for url in (f"file://{root}/sub/a%20b.png", f"file://localhost{root}/good", f"file:{root}/sub/a b.png"):
        assert await fetcher.fetch(url) == BODY
    for path in (
        "bad",
        "../outside",
        "sub/../../outside",
        "%2e%2e/outside",
        "",
        "sub",
        "none",
        "empty",
        "a%00",
    ):
        assert (await fails(f"file://{root}/{path}", options)).status == 400
    assert (await fails(f"file://example.com{root}/good", options)).status == 400
    assert (await fails(f"file://{root}/good", FetchOptions())).status == 400


def test_options_are_checked() -> None:
    """A wrong network, scheme or folder is an error when the options are made."""
    for wrong in (
        {"allow_networks": ("10.0.0.1/8",)},
        {"schemes": ("ftp",)},
        {"file_root": "/no/such/folder"},
    ):
        with pytest.raises(ValueError, match=r".+"):
            FetchOptions(**wrong)  # type: ignore[arg-type]
