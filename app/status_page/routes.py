"""The status page at ``/``: files sent as they are, which read and ask the API like any other client.

The page itself holds nothing and needs no key; what it shows comes from paths that do, where keys are set.
"""

from pathlib import Path

from fastapi import APIRouter
from fastapi.responses import FileResponse, Response

FOLDER = Path(__file__).parent
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; media-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}

router = APIRouter(include_in_schema=False)


def _file(name: str, media_type: str) -> Response:
    # By ranges where asked for: some browsers play no sound otherwise.
    return FileResponse(FOLDER / name, media_type=media_type, headers=HEADERS)


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


@router.get("/try.js")
def try_script() -> Response:
    """What asks the model."""
    return _file("try.js", "text/javascript")


@router.get("/picture.png")
def picture() -> Response:
    """The picture that it asks about."""
    return _file("picture.png", "image/png")


@router.get("/word.wav")
def word() -> Response:
    """The sound that it asks about."""
    return _file("word.wav", "audio/wav")
