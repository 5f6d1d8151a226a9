"""OpenAI's error shape, and the translation of our errors into it."""

import json
from http import HTTPStatus
from typing import Any

from fastapi.responses import JSONResponse

from deployments.errors import ClientError

TYPES = {
    400: "BadRequestError",
    401: "AuthenticationError",
    404: "NotFoundError",
    405: "MethodNotAllowed",
    413: "RequestTooLargeError",
    429: "RateLimitError",
    500: "InternalServerError",
    503: "ServiceUnavailableError",
    504: "GatewayTimeoutError",
}


class HttpError(Exception):
    """An answer that is not 200, ready to be sent."""

    def __init__(
        self,
        status: int,
        message: str,
        param: str | None = None,
        code: str | int | None = None,
        retry_after_s: int | None = None,
    ) -> None:
        super().__init__(status, message, param, code, retry_after_s)
        self.status = status
        self.message = message
        self.param = param
        self.code = code if code is not None else status
        self.retry_after_s = retry_after_s

    def body(self) -> dict[str, Any]:
        """The JSON of the answer."""
        kind = TYPES.get(self.status, "BadRequestError" if self.status < 500 else "InternalServerError")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}

    def response(self) -> JSONResponse:
        """The answer itself."""
        wait_s = 1 if self.retry_after_s is None and self.status in (429, 503) else self.retry_after_s
        headers = {"Retry-After": str(wait_s)} if wait_s is not None else None
        return JSONResponse(self.body(), status_code=self.status, headers=headers)


def raw(error: HttpError) -> bytes:
    """The answer as bytes of HTTP/1.1, for who cannot make one; the connection ends with it."""
    response = error.response()
    lines = [f"HTTP/1.1 {error.status} {HTTPStatus(error.status).phrase}", "connection: close"]
    lines += [f"{name}: {value}" for name, value in response.headers.items()]
    return "\r\n".join([*lines, "", ""]).encode() + response.body


def from_client_error(error: ClientError, param: str | None = None) -> HttpError:
    """The answer to a request that is itself at fault."""
    return HttpError(error.status, error.message, error.param or param, error.code)


def error_event(error: HttpError) -> str:
    """An error in mid-stream, as vLLM's own server sends it, and the end of the stream."""
    return f"data: {json.dumps(error.body())}\n\ndata: [DONE]\n\n"
