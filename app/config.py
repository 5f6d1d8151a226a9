"""The typed arguments of the application: every knob a user turns, checked once at build."""

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from app.keys import HASHED
from app.media_fetch import FetchOptions
from policies.limits import MediaLimits

EMBEDDED = "embedded"
"""Model name of the toy checkpoint that comes with the project."""
TINY = "tiny-"
"""Before the name of a module of ``tiny_models``: that family's tiny checkpoint, written on first use."""

SET_ELSEWHERE = {
    "model": "model",
    "served_model_name": "served_model_name",
    "dtype": "dtype",
    "trust_remote_code": "trust_remote_code",
    "revision": "revision",
    "enable_mm_embeds": None,
    "interleave_mm_strings": None,
    "limit_mm_per_prompt": None,
    "worker_extension_cls": None,
}
"""Engine arguments that are not the user's, and the key of ours that says the same, if there is one."""


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class EncodersConfig(_Strict):
    """What both encoder deployments share."""

    max_batch_size: int = Field(default=8, ge=1, le=256)
    batch_wait_s: float = Field(
        default=0.004, ge=0, le=1, description="longest wait for company of one shape, and only in a queue"
    )
    max_batch_s: float = Field(
        default=0.03, ge=0, le=10, description="longest batch of several items, by what they took before"
    )
    preprocess_workers: int = Field(default=1, ge=1, le=64, description="CPU processes per encoder replica")
    preprocess_timeout_s: float = Field(default=20.0, gt=0, description="longest preparation of one item")
    stuck_after_s: float = Field(
        default=30.0, gt=0, description="longest batch of a replica that is not stuck"
    )


class DecoderConfig(_Strict):
    """The decoder. ``engine_args`` are arguments of vLLM's own server by their Python names."""

    engine_args: dict[str, Any] = Field(default_factory=dict)
    stream_interval_s: float = Field(
        default=0.02,
        ge=0,
        le=1,
        description="events of one stream that come faster than this travel together",
    )
    stream_messages_per_s: float = Field(
        default=500.0,
        ge=1,
        description="messages of one decoder replica; where streams would send more, each sends less often",
    )

    @field_validator("engine_args")
    @classmethod
    def _none_of_ours(cls, value: dict[str, Any]) -> dict[str, Any]:
        for name in value:
            if name in SET_ELSEWHERE:
                ours = SET_ELSEWHERE[name]
                raise ValueError(f"{name} cannot be set here{f'; set {ours} instead' if ours else ''}")
        return value


class ControllerConfig(_Strict):
    """Collection and recycling of encoder replicas."""

    period_s: float = Field(default=1.0, gt=0)
    warm_graphs: int | None = Field(default=None, ge=0, description="default: half of max_graphs")
    warm_keys: dict[Literal["vision", "audio"], tuple[str, ...]] = Field(
        default_factory=dict, description="media keys to warm as long as traffic has named none"
    )
    window_s: float = Field(default=600.0, gt=0)
    max_recycles_per_window: int = Field(default=6, ge=1)
    first_delay_s: float = Field(default=2.0, ge=0)
    delay_growth: float = Field(default=2.0, ge=1)
    max_delay_s: float = Field(default=60.0, ge=0)
    capture_window_s: float = Field(default=1800.0, gt=0)
    capture_failures_to_disable: int = Field(default=2, ge=1)

    @model_validator(mode="after")
    def _delays_grow(self) -> "ControllerConfig":
        if self.first_delay_s > self.max_delay_s:
            raise ValueError("first_delay_s must not be more than max_delay_s")
        return self


class MediaConfig(_Strict):
    """Limits on media from outside and the hosts it may come from."""

    limits: MediaLimits = MediaLimits()
    fetch: FetchOptions = FetchOptions()


class AppConfig(_Strict):
    """Arguments of ``app.build:build`` in a Serve config."""

    model: str = EMBEDDED
    revision: str | None = None
    served_model_name: str | None = None
    dtype: Literal["float32", "bfloat16"] = "bfloat16"
    trust_remote_code: bool = False
    load_format: str = "auto"
    enforce_eager: bool = False
    hf_overrides: dict[str, Any] = Field(default_factory=dict)
    graphs: dict[str, dict[str, Any]] = Field(
        default_factory=dict, description="per encoder (vision, audio): options of its CUDA graphs"
    )
    encoders: EncodersConfig = EncodersConfig()
    decoder: DecoderConfig = DecoderConfig()
    controller: ControllerConfig = ControllerConfig()
    media: MediaConfig = MediaConfig()
    control_tokens: Literal["text", "tokens"] = Field(
        default="text", description="what a special token of the tokenizer is where a client writes it"
    )
    request_deadline_s: float = Field(default=120.0, gt=0)
    max_requests: int = Field(default=256, ge=1, description="in hand at once, per Ingress replica")
    max_body_bytes: int = Field(default=64 << 20, ge=1024)
    max_bodies_bytes: int = Field(
        default=1 << 30, ge=1024, description="of all requests in hand together, per Ingress replica"
    )
    max_n: int = Field(default=128, ge=1, description="choices that one request may ask for")
    embedding_cache_bytes: int = Field(default=256 << 20, ge=0)
    routing: Literal["shape", "default"] = "shape"
    routing_bound: int = Field(default=2, ge=0, description="how much busier a preferred replica may be")
    haproxy: bool = Field(default=False, description="make serve has HAProxy before the Ingress")
    log_encoding: Literal["TEXT", "JSON"] = "TEXT"
    admin_token: str | None = Field(default=None, description="itself, or sha256: and its hash")
    api_keys: tuple[str, ...] = Field(default=(), description="each itself, or sha256: and its hash")

    @field_validator("api_keys", "admin_token")
    @classmethod
    def _keys_are_keys(cls, value: Any) -> Any:
        for key in (value,) if isinstance(value, str) else value or ():
            if not key or (key.startswith("sha256:") and not HASHED.fullmatch(key)):
                raise ValueError("a key is a text, or sha256: and 64 lower-case hexadecimal digits")
        return value

    @field_validator("graphs")
    @classmethod
    def _known_encoders(cls, value: Mapping[str, Any]) -> Mapping[str, Any]:
        unknown = set(value) - {"vision", "audio"}
        if unknown:
            raise ValueError(f"unknown encoder {sorted(unknown)}; there are vision and audio")
        return value
