"""`mmcorl diversity`: how far the errors of two or more models overlap."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mmcorl.cli.options import command
from mmcorl.engines import ENGINES

SOURCES = """sources:
  MODEL            checkpoint folder, hub id, or zoo:NAME; it is sampled on --data or --benchmark
  MODEL@seed2      the same model with another sampling seed; --repeat 2 draws every model twice
  DIR              folder of `mmcorl eval` or `mmcorl grade`; several samples are several draws
  FILE             responses, as `mmcorl grade` reads them; problems are joined by id
  NAME=SOURCE      calls a source by a name; NAME@seed1=FILE NAME@seed2=FILE are two draws of one model

examples:
  mmcorl diversity Qwen/Qwen2.5-3B Qwen/Qwen2.5-7B --benchmark math500 --repeat 2 --engine vllm --out div
  mmcorl diversity zoo:qwen2.5-vl zoo:internvl3.5 --data synthetic:visual --style plain --max-new-tokens 14 --out div
  mmcorl diversity evals/qwen evals/llama phi=responses.jsonl --family phi=phi
"""


def add(commands: Any) -> None:
    """Give the command line `diversity`."""
    parser = command(
        commands, "diversity", run("diversity"), "how far the errors of models overlap: kappa, c, w, u", SOURCES
    )
    parser.add_argument("sources", nargs="+", metavar="SOURCE", help="what to compare; see below")
    options(parser)


def options(parser: argparse.ArgumentParser) -> None:
    """What `diversity` and `pair` both take: where responses come from, and how checkpoints are sampled."""
    parser.set_defaults(after_interrupt=": the same command goes on where it stood")
    parser.add_argument(
        "--data", metavar="SOURCE", help="problems to sample on: a source as in a config, or CONFIG.yaml for its own"
    )
    parser.add_argument(
        "--data-set", action="append", default=[], metavar="KEY=VALUE", help="a setting of --data: columns.answer=gold"
    )
    parser.add_argument(
        "--benchmark", metavar="NAME[=PATH]", help="problems to sample on, or known answers for files that hold none"
    )
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help="folder of samples, tables and page; goes on if it exists"
    )
    parser.add_argument("--problems", type=int, default=500, metavar="N", help="problems that are asked (default: 500)")
    parser.add_argument("--problems-seed", type=int, default=0, help="seed of their choice (default: 0)")
    parser.add_argument("--repeat", type=int, default=1, metavar="R", help="draws of each sampled model (default: 1)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the sampling noise (default: 0)")
    parser.add_argument("--temperature", type=float, default=0.8, help="of the samples (default: 0.8, as in the paper)")
    parser.add_argument("--top-p", type=float, default=1.0, help="nucleus mass (default: 1)")
    parser.add_argument("--max-new-tokens", type=int, default=3072, help="budget of a response (default: 3072)")
    parser.add_argument("--style", choices=("answer_tags", "boxed", "plain"), help="default: as trained, else boxed")
    parser.add_argument("--adapter", metavar="PKG.MODULE:CLASS", help="an adapter from outside")
    parser.add_argument("--device", default="cpu", help="cpu or cuda:N (default: cpu)")
    parser.add_argument("--dtype", choices=("fp32", "bf16"), default="fp32", help="arithmetic (default: fp32)")
    parser.add_argument(
        "--engine",
        choices=tuple(ENGINES),
        default="transformers",
        help="what samples (default: transformers)",
    )
    parser.add_argument(
        "--family",
        action="append",
        default=[],
        metavar="NAME=FAMILY",
        help="lineage of a source (default: the letters that begin its config's model_type)",
    )
    parser.add_argument(
        "--shared", action="store_true", help="use the problems that all sources answer, where they differ"
    )
    parser.add_argument("--quiet", action="store_true", help="no progress on stderr")
    parser.add_argument("--json", action="store_true", help="print as JSON")


def run(name: str) -> Callable[[argparse.Namespace], int]:
    """A command of the evaluation suite, which is above this package and imported when it runs."""

    def started(arguments: argparse.Namespace) -> int:
        import eval_suite
        from mmcorl.cli.main import _options, _reporter, show

        options = _options(arguments, "DiversityOptions" if name == "diversity" else "PairOptions")
        sources = arguments.sources if name == "diversity" else [arguments.anchor, *arguments.candidates]
        result = getattr(eval_suite, name)(*sources, options=options, reporter=_reporter(arguments))
        return show(result, arguments)

    return started
