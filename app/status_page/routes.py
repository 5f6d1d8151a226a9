"""The status page at ``/``: three files sent as they are, which read the API like any other client.

The page itself holds nothing and needs no key; what it shows comes from paths that do, where keys are set.
"""

from pathlib import Path

from fastapi import APIRouter
from fastapi.responses import Response

FOLDER = Path(__file__).parent
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}

router = APIRouter(include_in_schema=False)


def _file(name: str, media_type: str) -> Response:
    return Response((FOLDER / name).read_bytes(), media_type=media_type, headers=HEADERS)


@router.get("/")
def page() -> Response:
    """The page."""
    return _file("index.html", "text/html")


@router.get("/status.css")
def style() -> Response:
    """Its looks."""
    return _file("status.css", "text/css")


@router.get("/status.js")
def script() -> Response:
    """What keeps it up to date."""
    return _file("status.js", "text/javascript")
