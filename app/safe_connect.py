"""TCP connections to checked addresses only: resolve once, check every address, connect to what was checked.

The check sits below HTTP, where the connection is made, so that a name cannot mean one address when it is
checked and another when it is used, and a redirect passes it like any other request. TLS and the Host header
still see the name, for they come from the URL.
"""

import asyncio
import socket
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor

import httpcore

from deployments.media_errors import bad_part
from policies.addresses import Network, may_connect

Resolver = Callable[[str, int], Awaitable[list[str]]]


class SystemResolver:
    """The machine's own resolver, in its own threads.

    Not in the event loop's: a name server that answers slowly would take all of those.
    """

    def __init__(self, threads: int = 16) -> None:
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="media-dns")

    async def __call__(self, host: str, port: int) -> list[str]:
        """Every address of a host, in the system's order. Raises OSError where there is none."""
        loop = asyncio.get_running_loop()
        found = await loop.run_in_executor(
            self._threads, lambda: socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        )
        return list(dict.fromkeys(str(entry[4][0]) for entry in found))


class CheckedBackend(httpcore.AsyncNetworkBackend):
    """A network backend for httpcore that connects to globally routable addresses only; one per fetch."""

    def __init__(self, resolve: Resolver, allowed: Iterable[Network] = ()) -> None:
        self._resolve = resolve
        self._allowed = tuple(allowed)
        self._inner = httpcore.AnyIOBackend()
        self._opened: list[httpcore.AsyncNetworkStream] = []

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        """Connect to the first of the host's addresses that answers. Raises ClientError if one is refused."""
        try:
            addresses = await self._resolve(host, port)
        except (OSError, UnicodeError) as error:
            raise bad_part("cannot be fetched: its host has no address", code="media_fetch") from error
        # One bad address refuses the name: an honest host has no reason to mix public and internal ones.
        if not addresses or not all(may_connect(address, self._allowed) for address in addresses):
            raise bad_part("cannot be fetched: its host is not on the public internet", code="media_host")
        failure: Exception | None = None
        for address in addresses:
            try:
                stream = await self._inner.connect_tcp(address, port, timeout, local_address, socket_options)
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
                failure = error
            else:
                self._opened.append(stream)
                return stream
        assert failure is not None
        raise failure

    async def connect_unix_socket(
        self,
        path: str,
        timeout: float | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        """Refused: no URL leads here."""
        raise bad_part("cannot be fetched", code="media_host")

    async def aclose(self) -> None:
        """Close every connection: httpcore forgets one whose TLS handshake is cancelled."""
        for stream in self._opened:
            await stream.aclose()

    async def sleep(self, seconds: float) -> None:
        """Wait between attempts."""
        await asyncio.sleep(seconds)
