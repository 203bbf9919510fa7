"""`mmcorl rephrase`: another wording of every training question, through any OpenAI-compatible endpoint."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from mmcorl.cli.options import command

EPILOG = """examples:
  vllm serve Qwen/Qwen3-32B
  mmcorl rephrase configs/paper/text_3b_plus.yaml --model Qwen/Qwen3-32B
  mmcorl train configs/paper/text_3b_plus.yaml
The rows are those of data.train; the file is the one that the config names under data.train.views. A config without a
view needs --out, and the command says how to train on it. The same command goes on where it was stopped, and with more
--attempts asks again only for rows without a good rewording.
"""


def add(commands: Any) -> None:
    """Adds the command."""
    parser = command(commands, "rephrase", _rephrase, "reword the training questions for agents to read", EPILOG)
    parser.set_defaults(after_interrupt=": the same command goes on, every reply so far is kept")
    parser.add_argument("config", metavar="CONFIG", help="YAML file whose data.train is reworded")
    parser.add_argument("overrides", nargs="*", metavar="key.sub=value", help="settings that differ from the file")
    parser.add_argument("--model", required=True, help="name under which the endpoint serves the model that rewords")
    parser.add_argument(
        "--url", default="http://localhost:8000/v1", help="its address, up to /v1 (default: %(default)s)"
    )
    parser.add_argument("--key-env", metavar="NAME", help="environment variable that holds its key")
    parser.add_argument("--view", metavar="NAME", help="view to write, where the config has several")
    parser.add_argument("--out", type=Path, metavar="FILE.jsonl", help="file to write (default: that of the view)")
    parser.add_argument("--temperature", type=float, default=0.7, help="of the rewording (default: %(default)s)")
    parser.add_argument("--top-p", type=float, default=0.8, help="of the rewording (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the sampling, sent with each request (default: 0)")
    parser.add_argument("--attempts", type=int, default=3, help="rewordings tried for a row (default: %(default)s)")
    parser.add_argument(
        "--check",
        choices=("compare", "solve", "rules"),
        default="compare",
        help="is the answer the same? a model compares both wordings (default), or solves the new one, or only rules",
    )
    parser.add_argument(
        "--check-model", metavar="NAME", help="model that compares or solves (default: that of --model)"
    )
    parser.add_argument("--check-url", metavar="URL", help="its address (default: that of --url)")
    parser.add_argument("--check-key-env", metavar="NAME", help="environment variable that holds its key")
    parser.add_argument("--solves", type=int, default=3, help="times a question is solved (default: %(default)s)")
    parser.add_argument("--agree", type=int, default=2, help="solutions that must be right (default: %(default)s)")
    parser.add_argument(
        "--against",
        choices=("known", "votes"),
        default="known",
        help="what is right: the row's answer where it has one (default), or the vote of solutions of the original, "
        "which uses no label",
    )
    parser.add_argument(
        "--failed",
        choices=("original", "mark"),
        default="original",
        help="a row without a good rewording keeps its wording (default), or is marked and then counts as a bad row",
    )
    parser.add_argument(
        "--skip-rule",
        action="append",
        default=[],
        metavar="RULE",
        help="do not ask a rule: unicode, length, refusal, changed, pictures, options, numbers or latex",
    )
    parser.add_argument("--show-images", action="store_true", help="show pictures also to who rewords and compares")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="how the endpoint is asked: concurrency, timeout, retries, patience, stop_after, max_tokens, extra.NAME",
    )
    parser.add_argument("--check-set", action="append", default=[], metavar="NAME=VALUE", help="the same for the check")
    parser.add_argument("--quiet", action="store_true", help="no progress on stderr")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")


def _rephrase(arguments: argparse.Namespace) -> int:
    from mmcorl.config import load
    from mmcorl.tools.rephrase import RephraseOptions, rephrase_config, training_overrides, view_of

    config = load(arguments.config, arguments.overrides)
    name, out = view_of(config, arguments.view, arguments.out)
    options = RephraseOptions(**{field: getattr(arguments, field) for field in RephraseOptions.model_fields})
    report = rephrase_config(config, options, out, quiet=arguments.quiet)
    if arguments.json:
        print(json.dumps(asdict(report) | {"view": str(report.view)}))
    else:
        print(report.describe(options))
        words = [*arguments.overrides, *training_overrides(config, name, out)]
        print("train on it:", " ".join([f"mmcorl train {arguments.config}", *(f"'{word}'" for word in words)]))
    if report.unanswered:
        print(f"mmcorl: no reply came for {report.unanswered} row(s); the same command asks for them", file=sys.stderr)
    return 1 if report.unanswered else 0
