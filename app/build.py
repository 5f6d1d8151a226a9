"""The application as a graph, top to bottom in data-flow order.

No ``from __future__ import annotations`` here: with it Ray 2.60 hands the builder a dict and
accepts misspelt keys.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from ray.serve import Application
from ray.serve.config import RequestRouterConfig

from app.config import EMBEDDED, TINY, AppConfig
from app.ingress import Ingress, IngressOptions
from deployments import serve_view
from deployments.decoder import Decoder, DecoderOptions, check_gpus
from deployments.encoders.audio import AudioEncoder
from deployments.encoders.options import EncoderOptions
from deployments.encoders.preprocess_pool import PoolOptions
from deployments.encoders.vision import VisionEncoder
from deployments.errors import GraphServeError
from deployments.families.base import EncoderSpec, Family
from deployments.families.registry import control_tokens, load_family
from deployments.graph_controller import ControllerOptions, GraphController
from deployments.upstream.encoder_model import EncoderModelSpec
from policies.decoder_gpus import DecoderGpus
from policies.graph_options import (
    BUDGET_KEYS,
    BudgetOptions,
    GraphOptions,
    budget_options,
    graph_options,
)
from policies.recycling import RecyclingPolicy

# Serve's decorator makes deployments of these classes, which their static types do not say.
ENCODERS: dict[str, Any] = {"vision": VisionEncoder, "audio": AudioEncoder}
DECODER: Any = Decoder
CONTROLLER: Any = GraphController
INGRESS: Any = Ingress

AnyGraphOptions = GraphOptions | BudgetOptions


def build(config: AppConfig) -> Application:
    """Bind the graph that ``config`` describes. Every error names the key at fault."""
    refuse_wrong_gpus(config)
    config, model_name = resolve_model(config)
    return assemble(config, model_name, load_family(config.model, config.revision))


def assemble(config: AppConfig, model_name: str, family: Family) -> Application:
    """Bind the graph for a resolved config and the family of its model."""
    refuse_missing_encoders(config, family)
    graphs = {spec.encoder: encoder_graphs(config, spec) for spec in family.encoders}

    logs = log_options(config)
    controller = CONTROLLER.options(logging_config=logs).bind(controller_options(config, family, graphs))
    encoders = {
        spec.encoder: bind_encoder(config, family, spec, graphs[spec.encoder], controller)
        for spec in family.encoders
    }
    decoder = DECODER.options(logging_config=logs).bind(decoder_options(config, model_name), family)
    names = ("Decoder", "GraphController", *(ENCODERS[s.encoder].name for s in family.encoders))
    options = IngressOptions(
        config=config,
        family=family,
        model_name=model_name,
        identity=identity(config, family),
        limits=config.media.limits,
        fetch=config.media.fetch,
        deployments=names,
        control_tokens=(
            control_tokens(config.model, config.revision) if config.control_tokens == "text" else ()
        ),
    )
    application: Application = INGRESS.options(logging_config=logs).bind(
        options, encoders, decoder, controller
    )
    return application


def bind_encoder(
    config: AppConfig,
    family: Family,
    spec: EncoderSpec,
    graphs: AnyGraphOptions,
    controller: Any = None,
    **serve_options: Any,
) -> Application:
    """The deployment of one encoder; without a controller its replicas start and leave by themselves."""
    deployment = ENCODERS[spec.encoder].options(
        request_router_config=router(config, graphs), logging_config=log_options(config), **serve_options
    )
    bound: Application = deployment.bind(encoder_options(config, spec, graphs), family, controller)
    return bound


def refuse_wrong_gpus(config: AppConfig) -> None:
    """Raise where ``deployments:`` beside these args gives the Decoder other GPUs than it divides over.

    Later changes of ``deployments:`` alone do not come through here; a replica looks again when it starts.
    """
    for app in serve_view.configs_being_deployed():
        if not _same_args(app.get("args") or {}, config):
            continue
        gpus = decoder_gpus(app.get("deployments") or (), counted=serve_view.gpus_in_cluster() > 0)
        check_gpus(config.decoder.engine_args, gpus)


def decoder_gpus(deployments: Iterable[Mapping[str, Any]], *, counted: bool) -> DecoderGpus:
    """What ``deployments:`` of a Serve config gives a replica of the Decoder."""
    overrides = {entry["name"]: entry for entry in deployments}.get(DECODER.name, {})
    own = (overrides.get("ray_actor_options") or {}).get("num_gpus") or 0
    return DecoderGpus(own, overrides.get("placement_group_bundles") or (), counted=counted)


def _same_args(args: Mapping[str, Any], config: AppConfig) -> bool:
    try:
        return AppConfig.model_validate(args) == config
    except ValidationError:  # an application of somebody else
        return False


def refuse_missing_encoders(config: AppConfig, family: Family) -> None:
    """Raise for a setting of an encoder that the model does not have."""
    there = {spec.encoder for spec in family.encoders}
    for path, block in (("graphs", config.graphs), ("controller.warm_keys", config.controller.warm_keys)):
        for encoder in block:
            if encoder not in there:
                raise GraphServeError(f"{path}.{encoder}: {family.name} has no {encoder} encoder")


def resolve_model(config: AppConfig) -> tuple[AppConfig, str]:
    """Put the folder of a checkpoint of ours in place of its name; the name clients use beside it."""
    if config.model == EMBEDDED:
        from toy_model.write import ensure

        settled = config.model_copy(update={"model": str(ensure()), "trust_remote_code": True})
        return settled, config.served_model_name or "graphserve-toy"
    if config.model.startswith(TINY):
        from tiny_models import folders

        if (name := config.model.removeprefix(TINY)) not in folders.names():
            known = ", ".join(TINY + known for known in folders.names())
            raise GraphServeError(f"model: there is no {config.model}; tiny checkpoints are {known}")
        settled = config.model_copy(update={"model": str(folders.ensure(name))})
        return settled, config.served_model_name or config.model
    return config, config.served_model_name or config.model


def log_options(config: AppConfig) -> dict[str, Any]:
    """How every deployment logs; of requests and encodes there are lines of our own, so none of Serve's."""
    return {"encoding": config.log_encoding, "enable_access_log": False}


def router(config: AppConfig, graphs: AnyGraphOptions) -> RequestRouterConfig:
    """How requests find an encoder replica: by the graphs it holds, or Serve's own way."""
    if config.routing == "default":
        return RequestRouterConfig()
    return RequestRouterConfig(
        request_router_class="deployments.shape_router:ShapeRouter",
        request_router_kwargs={"bound": config.routing_bound, "max_graphs": slots(graphs)},
        request_routing_stats_period_s=1.0,
    )


def slots(graphs: AnyGraphOptions) -> int:
    """How many shapes an encoder replica captures as they come; budgets are captured at start and any shape
    fits them, so that none is looked for."""
    return graphs.max_graphs if isinstance(graphs, GraphOptions) else 0


def encoder_graphs(config: AppConfig, spec: EncoderSpec) -> AnyGraphOptions:
    """The options of one encoder's graphs, checked."""
    block, path = config.graphs.get(spec.encoder), f"graphs.{spec.encoder}"
    if spec.graph_kind == "budget":
        upstream = config.decoder.engine_args.get("compilation_config")
        options = budget_options(
            block,
            upstream if isinstance(upstream, Mapping) else None,
            path=path,
            upstream_path="decoder.engine_args.compilation_config",
            enforce_eager=config.enforce_eager,
        )
        return replace(options, decoder_tokens=decoder_tokens(config.decoder.engine_args))
    return graph_options(
        block, config.hf_overrides, path=path, encoder=spec.encoder, enforce_eager=config.enforce_eager
    )


def decoder_tokens(engine_args: Mapping[str, Any]) -> int:
    """The lesser of the decoder's batch-token limit and model length, as far as they are set; 0: neither."""
    given = (engine_args.get(name) for name in ("max_num_batched_tokens", "max_model_len"))
    return min((int(limit) for limit in given if isinstance(limit, int)), default=0)


def encoder_options(config: AppConfig, spec: EncoderSpec, graphs: AnyGraphOptions) -> EncoderOptions:
    """What the replicas of one encoder are told."""
    return EncoderOptions(
        spec=EncoderModelSpec(
            model=config.model,
            modality=spec.modality,
            dtype=config.dtype,
            trust_remote_code=config.trust_remote_code,
            revision=config.revision,
            load_format=config.load_format,
            enforce_eager=config.enforce_eager,
            hf_overrides=dict(config.hf_overrides),
        ),
        pool=PoolOptions(
            workers=config.encoders.preprocess_workers,
            item_timeout_s=config.encoders.preprocess_timeout_s,
            limits=config.media.limits,
        ),
        graphs=graphs,
        max_batch_size=config.encoders.max_batch_size,
        batch_wait_s=config.encoders.batch_wait_s,
        max_batch_s=config.encoders.max_batch_s,
        stuck_after_s=config.encoders.stuck_after_s,
    )


def decoder_options(config: AppConfig, model_name: str) -> DecoderOptions:
    """What the decoder is told."""
    engine_args: dict[str, Any] = {
        "load_format": config.load_format,
        "enforce_eager": config.enforce_eager,
        **config.decoder.engine_args,
    }
    if isinstance(compilation := engine_args.get("compilation_config"), Mapping):
        # Upstream's keys of encoder graphs are the encoders' here; the decoder has no encoder to capture.
        kept = {key: value for key, value in compilation.items() if key not in BUDGET_KEYS}
        engine_args["compilation_config"] = kept
    if config.hf_overrides:
        engine_args.setdefault("hf_overrides", dict(config.hf_overrides))
    return DecoderOptions(
        model=config.model,
        served_model_name=model_name,
        dtype=config.dtype,
        trust_remote_code=config.trust_remote_code,
        revision=config.revision,
        stream_interval_s=config.decoder.stream_interval_s,
        stream_messages_per_s=config.decoder.stream_messages_per_s,
        engine_args=engine_args,
    )


def controller_options(
    config: AppConfig, family: Family, graphs: dict[str, AnyGraphOptions]
) -> ControllerOptions:
    """What the controller watches and by which bounds it decides."""
    knobs = config.controller.model_dump(exclude={"period_s", "warm_graphs", "warm_keys"})
    warm = config.controller.warm_graphs
    return ControllerOptions(
        encoders={ENCODERS[s.encoder].name: (s.encoder, s.unit) for s in family.encoders},
        warm_graphs={
            ENCODERS[s.encoder].name: slots(graphs[s.encoder]) // 2 if warm is None else warm
            for s in family.encoders
        },
        warm_keys={
            ENCODERS[encoder].name: keys
            for encoder, keys in config.controller.warm_keys.items()
            if encoder in graphs
        },
        policy=RecyclingPolicy(**knobs, stuck_after_s=config.encoders.stuck_after_s),
        period_s=config.controller.period_s,
    )


def identity(config: AppConfig, family: Family) -> str:
    """What an embedding depends on besides the media: it goes into every media hash."""
    folder = Path(config.model)
    files = {}
    for name in ("config.json", "preprocessor_config.json"):
        if (folder / name).is_file():
            files[name] = hashlib.sha256((folder / name).read_bytes()).hexdigest()
    facts = [config.model, config.revision, config.dtype, config.hf_overrides, repr(family), files]
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
