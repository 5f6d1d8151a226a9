"""Keeps Serve's log files open when vLLM configures logging."""

import contextlib
import logging
from collections.abc import Iterator
from logging.handlers import MemoryHandler


@contextlib.contextmanager
def logs_kept() -> Iterator[None]:
    """Around calls in which vLLM may configure logging: making an engine's config, and an engine.

    ``logging.config.dictConfig`` closes every handler there is, and a closed MemoryHandler forgets the file
    it writes to: without this a replica's log ends there.
    """
    handlers = logging.getLogger("ray.serve").handlers
    targets = [(handler, handler.target) for handler in handlers if isinstance(handler, MemoryHandler)]
    try:
        yield
    finally:
        for handler, target in targets:
            handler.setTarget(target)
