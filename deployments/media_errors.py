"""Errors about one piece of media, worded so that they read well with and without the part's path."""

from deployments.errors import ClientError
from policies.limits import Refusal


def bad_part(what: str, code: str = "media_invalid", status: int = 400, detail: str = "") -> ClientError:
    """An error whose message is "this part " and ``what``; who knows the part's path adds ``param``."""
    return ClientError(f"this part {what}", status=status, code=code, detail=detail)


def raise_refusal(refusal: Refusal | None) -> None:
    """Raise what a check of policies.limits refused, if it did."""
    if refusal is not None:
        raise bad_part(refusal.message, refusal.code, refusal.status)
