"""The typed arguments of the application: every knob a user turns, checked once at build."""

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

EMBEDDED = "embedded"
"""Model name of the toy checkpoint that comes with the project."""


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class EncodersConfig(_Strict):
    """What both encoder deployments share."""

    max_batch_size: int = Field(8, ge=1, le=256)
    preprocess_workers: int = Field(1, ge=1, le=64, description="CPU worker processes per encoder replica")
    preprocess_timeout_s: float = Field(20.0, gt=0, description="longest preparation of one item")
    stuck_after_s: float = Field(30.0, gt=0, description="longest batch before a replica counts as stuck")


class DecoderConfig(_Strict):
    """The decoder. ``engine_args`` are arguments of vLLM's own server by their Python names."""

    engine_args: dict[str, Any] = Field(default_factory=dict)


class ControllerConfig(_Strict):
    """Collection and recycling of encoder replicas."""

    period_s: float = Field(1.0, gt=0)
    warm_graphs: int | None = Field(None, ge=0, description="default: half of max_graphs")
    window_s: float = Field(600.0, gt=0)
    max_recycles_per_window: int = Field(6, ge=1)
    first_delay_s: float = Field(2.0, ge=0)
    delay_growth: float = Field(2.0, ge=1)
    max_delay_s: float = Field(60.0, ge=0)
    capture_window_s: float = Field(1800.0, gt=0)
    capture_failures_to_disable: int = Field(2, ge=1)


class MediaConfig(_Strict):
    """Limits on media from outside and the hosts it may come from."""

    limits: dict[str, Any] = Field(default_factory=dict, description="fields of policies.limits.MediaLimits")
    fetch: dict[str, Any] = Field(default_factory=dict, description="fields of app.media_fetch.FetchOptions")


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
    request_deadline_s: float = Field(120.0, gt=0)
    max_requests: int = Field(256, ge=1, description="requests one Ingress replica has in hand at once")
    max_body_bytes: int = Field(64 << 20, ge=1024)
    embedding_cache_bytes: int = Field(256 << 20, ge=0)
    routing: Literal["shape", "default"] = "shape"
    routing_bound: int = Field(2, ge=0, description="requests by which a preferred replica may be busier")
    admin_token: str | None = None
    api_keys: tuple[str, ...] = ()

    @field_validator("graphs")
    @classmethod
    def _known_encoders(cls, value: Mapping[str, Any]) -> Mapping[str, Any]:
        unknown = set(value) - {"vision", "audio"}
        if unknown:
            raise ValueError(f"unknown encoder {sorted(unknown)}; there are vision and audio")
        return value
