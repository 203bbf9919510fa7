"""`mmcorl pair`: which of several models should be a model's partner, and why."""

from __future__ import annotations

from typing import Any

from mmcorl.cli.diversity import options, run
from mmcorl.cli.options import command

PARTNERS = """Sources are those of `mmcorl diversity`; in its folder (--out) nothing is sampled a second time.

examples:
  mmcorl pair Qwen/Qwen2.5-3B Qwen/Qwen2.5-7B microsoft/Phi-3.5-mini-instruct --benchmark math500 --out div
  mmcorl pair evals/qwen evals/llama evals/phi
  mmcorl pair --label-free a.jsonl b.jsonl c.jsonl
"""


def add(commands: Any) -> None:
    """Give the command line `pair`."""
    parser = command(commands, "pair", run("pair"), "rank possible partners of a model, and say why", PARTNERS)
    parser.add_argument("anchor", metavar="ANCHOR", help="the model that looks for a partner")
    parser.add_argument("candidates", nargs="*", metavar="CANDIDATE", help="possible partners")
    parser.add_argument(
        "--label-free", action="store_true", help="use no known answers, only how often three models or more agree"
    )
    options(parser)
