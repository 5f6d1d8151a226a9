"""Vision encoder replicas of Llama 4 under Serve, without a decoder: real dimensions, random weights.

The deployments are the application's own, bound by its own builder. The checkpoint is the tiny one's files
with the real model's numbers and no weights; each replica fills its own, all with the same values.
"""

import contextlib
import json
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from app import build
from app.config import AppConfig
from benchmarks.random_encoders import REAL
from deployments.families.llama4 import Llama4
from deployments.families.registry import load_family
from tiny_models import llama4

DECODER = {"max_num_batched_tokens": 8192, "max_model_len": 8192}
"""The decoder's limits, which are those of the budgets: configs/llama4-scout.yaml's batch."""

ENVIRONMENT = {"OMP_NUM_THREADS": "1", "VLLM_NO_USAGE_STATS": "1"}


@dataclass(frozen=True)
class RandomLlama4(Llama4):
    """The family, with weights of a scale that lets every layer show in the result."""

    def core(self, encoder: str, model: Any, options: Any, device: Any) -> Any:
        """Fill, then build the core."""
        from benchmarks.random_encoders import randomise

        randomise(model, device)
        return super().core(encoder, model, options, device)


def write_checkpoint(folder: Path, *, small: bool) -> None:
    """Configuration, tokenizer and processor files; ``small`` leaves the tiny checkpoint's numbers."""
    for name, data in described(small=small).items():
        (folder / name).write_text(json.dumps(data), encoding="utf-8")
    (folder / "chat_template.jinja").write_text(llama4.CHAT_TEMPLATE, encoding="utf-8")


def described(*, small: bool) -> dict[str, dict[str, Any]]:
    """What each JSON file holds, by name; the encoder at real dimensions unless ``small``."""
    files = llama4.described()
    if small:
        return files
    config, processor = files["config.json"], files["preprocessor_config.json"]
    config["text_config"]["hidden_size"] = REAL.llama_text
    config["vision_config"].update(
        hidden_size=REAL.llama_width,
        num_hidden_layers=REAL.llama_layers,
        num_attention_heads=REAL.llama_heads,
        intermediate_size=REAL.llama_mlp,
        image_size=REAL.llama_image,
        projector_input_dim=REAL.llama_projector,
        projector_output_dim=REAL.llama_projector,
        vision_output_dim=REAL.llama_projector,
    )
    processor["size"] = {"height": REAL.llama_image, "width": REAL.llama_image}
    return files


@contextlib.contextmanager
def running(
    graphs: Mapping[str, Mapping[str, Any]], *, small: bool = False
) -> Iterator[tuple[Llama4, dict[str, Any]]]:
    """One replica for each entry, by name, with those graph options. Yields the family and the Serve handles.

    They share the card where there is one; a replica has it for itself while no other is asked.
    """
    import ray
    from ray import serve

    with tempfile.TemporaryDirectory(prefix="llama4-") as name:
        folder = Path(name)
        write_checkpoint(folder, small=small)
        ray.init(address="local", runtime_env={"env_vars": ENVIRONMENT}, logging_level="ERROR")
        try:
            serve.start(proxy_location="Disabled", logging_config={"log_level": "WARNING"})
            family = random_family(folder)
            share = 0.9 / len(graphs) if ray.cluster_resources().get("GPU") else 0.0
            targets = [
                serve.RunTarget(target=bind(folder, family, dict(block), share), name=kind, route_prefix=None)
                for kind, block in graphs.items()
            ]
            yield family, dict(zip(graphs, serve.run_many(targets), strict=True))
        finally:
            serve.shutdown()
            ray.shutdown()


def random_family(folder: Path) -> RandomLlama4:
    """The family with the folder's numbers."""
    found = load_family(str(folder))
    return RandomLlama4(**{field.name: getattr(found, field.name) for field in fields(Llama4)})


def bind(folder: Path, family: RandomLlama4, block: dict[str, Any], num_gpus: float) -> Any:
    """One encoder deployment as the builder binds it."""
    config = AppConfig.model_validate(
        {
            "model": str(folder),
            "dtype": "bfloat16",
            "load_format": "dummy",
            "graphs": {"vision": block},
            "encoders": {"preprocess_workers": 2},
            "decoder": {"engine_args": DECODER},
        }
    )
    (spec,) = family.encoders
    graphs = build.encoder_graphs(config, spec)
    return build.bind_encoder(
        config, family, spec, graphs, ray_actor_options={"num_cpus": 0, "num_gpus": num_gpus}
    )


def size_of(tiles: int, *, tile_side: int, max_tiles: int) -> tuple[int, int]:
    """Width and height of a picture that becomes so many tiles, the global one among them."""
    grid = next(
        (rows, columns)
        for rows in range(4, 0, -1)
        for columns in range(max_tiles, 0, -1)
        if rows * columns == (tiles if tiles == 1 else tiles - 1)
    )
    return grid[1] * tile_side, grid[0] * tile_side
