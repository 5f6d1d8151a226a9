"""Train the embedded default model: python -m training --out DIR (one GPU; a CPU does for a try)."""

import argparse
import json
import time
from dataclasses import fields, replace
from pathlib import Path

import torch

from training import fit, measure, voices
from training.export import write_weights


def main() -> None:
    """Speak what is missing, train, write the weights and the held-out results."""
    parser = argparse.ArgumentParser(prog="python -m training", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="where weights and results go")
    parser.add_argument(
        "--spoken", type=Path, default=Path(".cache/training"), help="where espeak-ng's clips lie"
    )
    parser.add_argument("--only-speak", action="store_true", help="make the clips and stop")
    defaults = fit.Options()
    for option in fields(fit.Options):
        default = getattr(defaults, option.name)
        parser.add_argument(f"--{option.name.replace('_', '-')}", type=type(default), default=default)
    arguments = parser.parse_args()
    options = replace(defaults, **{f.name: getattr(arguments, f.name) for f in fields(fit.Options)})
    begun = time.monotonic()
    train_clips, held_out_clips = voices.ensure(arguments.spoken, options.seed)
    if arguments.only_speak:
        return
    arguments.out.mkdir(parents=True, exist_ok=True)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    fit.say(f"{device}, {len(train_clips)} clips, {time.monotonic() - begun:.0f} s")
    model = fit.train(train_clips, options, device, arguments.out)
    digest = write_weights(model.cpu(), arguments.out / "model.safetensors")
    fit.say(f"model.safetensors sha256 {digest}, {time.monotonic() - begun:.0f} s")
    results = measure.report(model.to(device), held_out_clips, options.seed, device)
    (arguments.out / "results.json").write_text(json.dumps(results, indent=1))
    for kind, line in results.items():
        fit.say(f"{kind}: {line}")
    fit.say(f"{time.monotonic() - begun:.0f} s")


if __name__ == "__main__":
    main()
