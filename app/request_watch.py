"""One chat request from its arrival to its last byte: counted, timed, and a line in the log."""

import logging
import time
from dataclasses import dataclass, field

import ray.exceptions
from starlette.requests import ClientDisconnect

from app.http_errors import HttpError
from deployments.metrics import IngressMetrics
from policies.traffic import Traffic, TrafficWindow

logger = logging.getLogger("ray.serve")

GONE = (ClientDisconnect, ray.exceptions.TaskCancelledError)
"""What reading from a client ends with when it has gone, by starlette and by Serve."""
CLIENT_GONE = 499
"""Counted as the status of a request whose client went away before it had its answer."""


@dataclass
class Watched:
    """What is known of a request so far."""

    begun_s: float = field(default_factory=time.monotonic)
    status: int = CLIENT_GONE
    media: str = "none"
    first_token_s: float | None = None

    def failed(self, error: Exception) -> None:
        """It ends with this error instead of an answer."""
        if not isinstance(error, GONE):
            self.status = error.status if isinstance(error, HttpError) else 500


class RequestWatch:
    """The requests in hand at this Ingress replica, and those that ended of late."""

    def __init__(self, metrics: IngressMetrics) -> None:
        self.metrics = metrics
        self.window = TrafficWindow()
        self.in_hand = 0

    def begin(self) -> Watched:
        """A request came."""
        self.in_hand += 1
        return Watched()

    def answered(self, request: Watched, status: int, media: str, *, streaming: bool) -> None:
        """The answer is known; of a stream, its first event."""
        request.status, request.media = status, media
        if streaming:
            request.first_token_s = time.monotonic() - request.begun_s

    def ended(self, request: Watched) -> None:
        """The last byte was sent, or nobody waits for it any more."""
        self.in_hand -= 1
        now_s = time.monotonic()
        latency_s, first_s = now_s - request.begun_s, request.first_token_s
        self.window.add(now_s, request.status, latency_s, first_s)
        self.metrics.ended(request.status, request.media, latency_s, first_s)
        if first_s is not None:
            self.metrics.spent("stream", latency_s - first_s)
        logger.info(
            "chat %d in %.3f s, %s, media %s",
            request.status,
            latency_s,
            "not streamed" if first_s is None else f"first event after {first_s:.3f} s",
            request.media,
            extra={
                "status": request.status,
                "media": request.media,
                "latency_s": round(latency_s, 6),
                "first_token_s": None if first_s is None else round(first_s, 6),
            },
        )

    def traffic(self) -> Traffic:
        """The last minute."""
        return self.window.traffic(time.monotonic(), self.in_hand)
