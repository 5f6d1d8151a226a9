"""How many replicas an encoder should have, from the work that waits for it in seconds per replica.

Between the two marks nothing moves. A step down is taken only when those that stay could carry the
load without reaching the upper mark, so that a steady load never makes the number swing. How long a
wish must last before it is carried out is Serve's own ``upscale_delay_s`` and ``downscale_delay_s``.
"""

import math
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class ScalingPolicy:
    """Marks in seconds of queued work per replica, and the busy share a smaller set may reach."""

    target_s: float = 0.5
    up_above_s: float = 1.0
    down_below_s: float = 0.1
    max_busy_share: float = 0.7

    def __post_init__(self) -> None:
        if not 0 <= self.down_below_s < self.target_s <= self.up_above_s:
            raise ValueError("need 0 <= down_below_s < target_s <= up_above_s")
        if not 0 < self.max_busy_share <= 1:
            raise ValueError("max_busy_share must be above 0 and at most 1")


@dataclass(frozen=True, slots=True)
class Pace:
    """How long a replica takes over a token, from what it finished lately.

    Preparation and encoding run side by side, so the slower of the two sets the pace: the time of
    ``workers`` preparing processes, or that of the one GPU thread. Of what is remembered each further item
    takes ``forget``, so that about fifty items count.
    """

    workers: int
    prepare_s: float = 0.0
    encode_s: float = 0.0
    tokens: float = 0.0
    items: float = 0.0
    forget: float = 0.02

    def after(self, tokens: int, prepare_s: float, encode_s: float) -> "Pace":
        """The pace when an item of so many tokens has taken so many seconds of worker and GPU thread."""
        keep = 1.0 - self.forget
        return replace(
            self,
            prepare_s=self.prepare_s * keep + prepare_s,
            encode_s=self.encode_s * keep + encode_s,
            tokens=self.tokens * keep + tokens,
            items=self.items * keep + 1.0,
        )

    @property
    def seconds_per_token(self) -> float:
        """0.0 until something was finished."""
        slower_s = max(self.prepare_s / self.workers, self.encode_s)
        return slower_s / self.tokens if self.tokens else 0.0

    @property
    def tokens_per_item(self) -> float:
        """Tokens of the usual item; 0.0 until something was finished."""
        return self.tokens / self.items if self.items else 0.0


@dataclass(frozen=True, slots=True)
class EncoderLoad:
    """The load of one encoder deployment, over the replicas that report.

    ``queued_s`` is all waiting work in seconds of one replica; ``busy`` is how many replicas' worth of
    time is spent working.
    """

    reporting: int
    queued_s: float
    busy: float


def desired_replicas(load: EncoderLoad, target: int, policy: ScalingPolicy) -> int:
    """The number wished for; ``target`` is the one aimed at now. Bounds are the caller's.

    Going up is as far as the work asks; going down is one at a time. Without a report nothing moves.
    """
    if load.reporting == 0:
        return target
    if load.queued_s / load.reporting > policy.up_above_s:
        return max(target, math.ceil(load.queued_s / policy.target_s))
    fewer = target - 1
    if fewer < 1 or load.reporting < target:  # those that still start would be judged by an old queue
        return target
    quiet = load.queued_s / target < policy.down_below_s and load.queued_s / fewer < policy.up_above_s
    return fewer if quiet and load.busy <= policy.max_busy_share * fewer else target
