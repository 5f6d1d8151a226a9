"""The command line of ``benchmarks.serving``, and which plan and which servers it asks for."""

import argparse
from dataclasses import replace
from pathlib import Path

from benchmarks import contenders, llama4_serving, load, serving_plan
from benchmarks.contenders import Contender, Setup
from benchmarks.serving_plan import Plan
from tests.servers import ROOT

TOY = (load.Lengths(tokens_in=16, tokens_out=8), serving_plan.Sizes(140, 420, 0.05))
REAL = (load.Lengths(tokens_in=100, tokens_out=64), serving_plan.Sizes())
RESULTS = ROOT / "benchmarks" / "results"


def parse(description: str | None) -> argparse.Namespace:
    """The command line, with every default in its place."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.serving", description=description)
    parser.add_argument(
        "--card", choices=["gpu", "cpu"], default="gpu", help="cpu: the toy, to try the program"
    )
    parser.add_argument(
        "--model", choices=["real", "toy", "llama4"], help="default: real on the GPU, toy on the CPU"
    )
    parser.add_argument(
        "--dense", action="store_true", help="Llama 4 without experts: needs no kernels for them"
    )
    parser.add_argument("--gpus", type=int, choices=[1, 2], default=1, help="2: the layouts over two GPUs")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="these servers alone, to try something")
    parser.add_argument(
        "--mps", action="store_true", help="GraphServe's processes share the GPU by NVIDIA's MPS"
    )
    parser.add_argument("--rounds", type=int, default=3, help="rounds of every case and server")
    parser.add_argument(
        "--more", action="store_true", help="30 s of audio and 8 at once too; Llama 4: 32 at once"
    )
    parser.add_argument("--cases", nargs="+", metavar="NAME", help='these alone, as "large image, 1 at once"')
    parser.add_argument("--time-limit-s", type=float, default=1e9, help="of the whole program")
    parser.add_argument("--start-timeout-s", type=float, default=400.0)
    parser.add_argument("--encodes", type=int, default=12, help="single encodes of each kind, for the stages")
    parser.add_argument("--json", type=Path, help="default: by the model, in benchmarks/results")
    parser.add_argument("--work", type=Path, help="folder for the checkpoint, logs and compile caches")
    parser.add_argument("--dry-run", action="store_true", help="resolve every configuration, start nothing")
    parser.add_argument("--report", action="store_true", help="print the tables of what there is")
    options = parser.parse_args()
    options.model = options.model or ("real" if options.card == "gpu" else "toy")
    options.json = options.json or RESULTS / f"serving_{'llama4_' * (options.model == 'llama4')}h200.json"
    if options.model == "llama4" and options.gpus == 2:
        parser.error("--model llama4 is for one GPU")
    if options.card == "cpu" and (options.mps or contenders.WITH_MPS in (options.only or ())):
        parser.error("MPS is for --card gpu")
    if options.model == "toy" and options.card == "gpu":
        parser.error("--model toy is for --card cpu")
    return options


def plan_of(options: argparse.Namespace) -> Plan:
    """What is measured."""
    if options.model == "llama4":
        return llama4_serving.plan(real=options.card == "gpu")
    return serving_plan.minicpmo(*(TOY if options.model == "toy" else REAL))


def servers_of(options: argparse.Namespace, folder: Path) -> tuple[Setup, dict[str, Contender]]:
    """Who is measured; writes the checkpoint. With and without MPS at once only by ``--only``."""
    setup, every = _every_server(options, folder)
    names = options.only or [name for name in every if name != contenders.WITH_MPS]
    chosen = {name: every[name] for name in names}
    if options.mps:
        ours = {name: replace(of, mps=True) for name, of in chosen.items() if of.config is not None}
        chosen |= ours
    return setup, chosen


def _every_server(options: argparse.Namespace, folder: Path) -> tuple[Setup, dict[str, Contender]]:
    if options.model == "llama4":
        real = options.card == "gpu"
        setup = llama4_serving.on_gpu(folder, dense=options.dense) if real else llama4_serving.on_cpu()
        return setup, llama4_serving.contenders(setup)
    toy = options.model == "toy"
    setup = contenders.on_cpu() if toy else contenders.on_gpu(folder, contenders.cores())
    return setup, contenders.contenders(setup, options.gpus)
