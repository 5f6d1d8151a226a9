"""What ``GET /health`` says: watches Serve's own view of the application."""

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ray import serve

logger = logging.getLogger("ray.serve")

AS_IT_SHOULD_BE = frozenset({"HEALTHY", "UPSCALING", "DOWNSCALING"})
"""Serve's states of a deployment that serves; autoscaling is no fault of it."""


@dataclass(frozen=True)
class Health:
    """One look at the application. ``parts`` names what is not as it should be, and why."""

    was_ready: bool = False
    text: bool = False
    parts: Mapping[str, str] = field(default_factory=dict)

    @property
    def status(self) -> int:
        """200 while text can be answered, once everything has been ready; 503 before and otherwise."""
        return 200 if self.was_ready and self.text else 503

    def body(self) -> dict[str, Any]:
        """The JSON of the answer."""
        if not self.was_ready:
            word = "starting"
        elif not self.text:
            word = "unavailable"
        else:
            word = "degraded" if self.parts else "ok"
        return {"status": word, "parts": dict(self.parts)}


class Readiness:
    """Polls Serve's controller; a failing poll leaves the last view in place."""

    def __init__(self, app_name: str, deployments: tuple[str, ...], period_s: float = 1.0) -> None:
        self.app_name = app_name
        self.deployments = deployments
        self.period_s = period_s
        self.health = Health(parts=dict.fromkeys(deployments, "not seen yet"))
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to watch, inside the running event loop. Safe to call again."""
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._watch(), name="readiness")

    async def _watch(self) -> None:
        while True:
            try:
                status = await asyncio.to_thread(serve.status)
                seen = status.applications[self.app_name].deployments
                self.health = look(self.health, seen, self.deployments)
            except Exception as error:  # Serve's controller restarts; the next look will tell
                logger.warning("cannot read Serve's status: %r", error)
            await asyncio.sleep(self.period_s)


def look(before: Health, deployments: Mapping[str, Any], wanted: tuple[str, ...]) -> Health:
    """The next view from Serve's status of each deployment."""
    parts: dict[str, str] = {}
    running: dict[str, int] = {}
    for name in wanted:
        info = deployments.get(name)
        states = dict(info.replica_states) if info else {}
        running[name] = int(states.get("RUNNING", 0))
        if info is None:
            parts[name] = "not deployed"
        elif info.status not in AS_IT_SHOULD_BE:
            detail = ", ".join(f"{count} {str(state).lower()}" for state, count in states.items() if count)
            parts[name] = (
                f"{str(getattr(info.status, 'value', info.status)).lower()}: {detail or 'no replica'}"
            )
    return Health(before.was_ready or not parts, running.get("Decoder", 0) > 0, parts)
