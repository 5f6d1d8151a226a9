"""Keys of clients and the administrator's token, in the open or by their SHA-256.

Serve writes an application's arguments to its controller's log and to Ray's dashboard, so a key that must not
be read there stands in the config as ``sha256:`` and 64 hexadecimal digits.
"""

import hashlib
import hmac
import re
from collections.abc import Iterable

HASHED = re.compile(r"sha256:([0-9a-f]{64})")


class Keys:
    """Which keys are known; false where none is."""

    def __init__(self, keys: Iterable[str]) -> None:
        self._digests = [_digest_of(key) for key in keys]

    def __bool__(self) -> bool:
        return bool(self._digests)

    def hold(self, given: str) -> bool:
        """Whether this is one of them, in time that says nothing of any."""
        digest = hashlib.sha256(given.encode("utf-8", "surrogateescape")).digest()
        found = False
        for known in self._digests:
            found |= hmac.compare_digest(digest, known)
        return found


def _digest_of(key: str) -> bytes:
    hashed = HASHED.fullmatch(key)
    return bytes.fromhex(hashed[1]) if hashed else hashlib.sha256(key.encode()).digest()
