"""The command that rewords training questions: rephrase."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

from mmcorl.cli.arguments import Flag, Output, Progress, command
from mmcorl.cli.train import RunArguments
from mmcorl.config import load
from mmcorl.tools.rephrase.options import RephraseOptions

EPILOG = """examples:
  vllm serve Qwen/Qwen3-32B
  mmcorl rephrase configs/paper/text_3b_plus.yaml --model Qwen/Qwen3-32B
  mmcorl train configs/paper/text_3b_plus.yaml
The rows are those of data.train; the file is the one that the config names under data.train.views. A config without a
view needs --out, and the command prints how to train on it. The same command continues where it stopped; with more
--attempts it asks again only for rows without a good rewording.
"""


class ViewArguments(RunArguments):
    view: Annotated[str | None, Flag(metavar="NAME")] = None
    """view to write, where the config has several"""
    out: Annotated[Path | None, Flag(metavar="FILE.jsonl")] = None
    """file to write (default: that of the view)"""


@command(
    "rephrase",
    "reword the training questions for agents to read",
    epilog=EPILOG,
    after_interrupt=": the same command continues, every reply so far is kept",
)
def rephrase(run: ViewArguments, options: RephraseOptions, progress: Progress, output: Output) -> int:
    """Write the view; exit status 1 where the endpoint left rows unanswered."""
    from mmcorl.tools.rephrase import rephrase_config, training_overrides, view_of

    config = load(run.config, run.overrides)
    name, out = view_of(config, run.view, run.out)
    report = rephrase_config(config, options, out, quiet=progress.quiet)
    if output.as_json:
        print(json.dumps(asdict(report) | {"view": str(report.view)}))
    else:
        print(report.describe(options))
        words = [*run.overrides, *training_overrides(config, name, out)]
        print("train on it:", " ".join([f"mmcorl train {run.config}", *(f"'{word}'" for word in words)]))
    if report.unanswered:
        print(f"mmcorl: no reply came for {report.unanswered} row(s); the same command asks for them", file=sys.stderr)
    return 1 if report.unanswered else 0
