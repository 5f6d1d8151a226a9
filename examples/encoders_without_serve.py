"""Use the vision encoder and its graph adapter from Python: no Ray, no engine, no language model.

    .venv/bin/python examples/encoders_without_serve.py
    .venv/bin/python examples/encoders_without_serve.py --model openbmb/MiniCPM-o-4_5 --dtype bfloat16

On a GPU the third call of one shape replays a CUDA graph; on a CPU every call runs eagerly and is counted as
an ineligible miss.
"""

import argparse
import time
from pathlib import Path

from deployments.encoders.media_decode import decoder
from deployments.families.registry import load_family
from deployments.upstream.encoder_model import EncoderModelSpec, encoder_config, load_encoder, running
from policies.graph_options import GraphOptions
from policies.limits import MediaLimits
from toy_model.write import ensure

HERE = Path(__file__).parent


def main() -> None:
    """Load, prepare one picture, encode it three times, print what came out."""
    options = parse()
    model_name = options.model or str(ensure())
    family = load_family(model_name)
    spec = next(spec for spec in family.encoders if spec.encoder == "vision")
    data = options.picture.read_bytes()
    print(f"family {family.name}; shape by the header alone: {family.media_key('vision', data)}")

    config = encoder_config(
        EncoderModelSpec(model_name, spec.modality, options.dtype, trust_remote_code=True)
    )
    model = load_encoder(config)
    device = next(getattr(model, spec.modules[0]).parameters()).device
    # One picture is one row and a row for each slice; a row count that is not listed runs eagerly.
    graphs = GraphOptions(max_graphs=4, min_capture_calls=2, graph_batch_sizes=tuple(range(1, 10)))
    core = family.core("vision", model, graphs, device)

    inputs = family.preprocessor("vision", config)(decoder(spec.modality, MediaLimits())(data))
    print(f"prepared: shape {inputs.shape_key}, {inputs.tokens} tokens")
    for number in range(1, 4):
        begun = time.perf_counter()
        with running(config):
            embedding = core.encode([inputs])[0].float().cpu()
        took_ms = (time.perf_counter() - begun) * 1e3
        facts = f"mean {embedding.mean():.4f}, std {embedding.std():.4f}"
        print(f"call {number}: {tuple(embedding.shape)} in {took_ms:.1f} ms on {device}; {facts}")
    print(f"graphs held: {core.adapter.captured_keys()}")
    print(f"counts: {core.adapter.get_cumulative_stats()}")


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", help="a folder or hub name; default: the embedded toy model")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--picture", type=Path, default=HERE / "picture.png")
    return parser.parse_args()


if __name__ == "__main__":
    main()
