"""`mmcorl rephrase`: another wording of every training question, through any OpenAI-compatible endpoint."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mmcorl.cli.options import command
from mmcorl.errors import UserError

if TYPE_CHECKING:
    from mmcorl.config import Config
    from mmcorl.tools.rephrase import RephraseSettings, Report

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
        help="how the endpoint is asked: concurrency, timeout, retries, patience, stop_after, "
        "max_tokens, extra.NAME",
    )
    parser.add_argument("--check-set", action="append", default=[], metavar="NAME=VALUE", help="the same for the check")
    parser.add_argument("--quiet", action="store_true", help="no progress on stderr")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")


def _rephrase(arguments: argparse.Namespace) -> int:
    from mmcorl.config import load
    from mmcorl.data import load_prompts
    from mmcorl.tools.rephrase import rephrase

    config = load(arguments.config, arguments.overrides)
    name, out = _view(config, arguments.view, arguments.out)
    settings = _settings(arguments, config.vision.max_side)
    # Other views may not exist yet, and min_rows is about training.
    data = config.data.train.model_copy(update={"views": {}, "min_rows": 1})
    report = rephrase(load_prompts(data), settings, out, quiet=arguments.quiet)
    if arguments.json:
        print(json.dumps(asdict(report) | {"view": str(report.view)}))
    else:
        _tell(report, settings, _train(arguments, config, name, out))
    if report.unanswered:
        print(f"mmcorl: no reply came for {report.unanswered} row(s); the same command asks for them", file=sys.stderr)
    return 1 if report.unanswered else 0


def _view(config: Config, name: str | None, out: Path | None) -> tuple[str, Path]:
    """Name and file of the view that is written."""
    # Views without a source are columns of the data.
    files = {view: settings.source for view, settings in config.data.train.views.items() if settings.source}
    if name is None and len(files) > 1 and out is None:
        raise UserError(f"the config has the views {', '.join(files)}; say with --view which one is written")
    name = name or (next(iter(files)) if len(files) == 1 else "rephrased")
    if out is None and name not in files:
        raise UserError(f"the config has no view {name!r} that would name a file; say with --out what is written")
    return name, (out or Path(files[name])).expanduser()


def _settings(arguments: argparse.Namespace, max_side: int) -> RephraseSettings:
    from mmcorl.llm_client import with_options
    from mmcorl.tools.rephrase import CheckerSettings, RephraseSettings, RewriterSettings

    rewriter = RewriterSettings(base_url=arguments.url, model=arguments.model, api_key_env=arguments.key_env)
    rewriter = with_options(rewriter, arguments.set)
    checker = CheckerSettings(**{field.name: getattr(rewriter, field.name) for field in fields(rewriter)})
    told = {
        "model": arguments.check_model,
        "base_url": arguments.check_url,
        # A key goes only where it was named for.
        "api_key_env": arguments.check_key_env or (None if arguments.check_url else arguments.key_env),
    }
    checker = replace(checker, **{field: value for field, value in told.items() if value or field == "api_key_env"})
    return RephraseSettings(
        rewriter=rewriter,
        checker=with_options(checker, arguments.check_set),
        temperature=arguments.temperature,
        top_p=arguments.top_p,
        seed=arguments.seed,
        attempts=arguments.attempts,
        check=arguments.check,
        solves=arguments.solves,
        agree=arguments.agree,
        against=arguments.against,
        failed=arguments.failed,
        without=frozenset(arguments.skip_rule),
        show_images=arguments.show_images,
        max_side=max_side,
    )


def _train(arguments: argparse.Namespace, config: Config, name: str, out: Path) -> str:
    """The command that trains on the view."""
    words = ["mmcorl train", arguments.config, *(f"'{override}'" for override in arguments.overrides)]
    view = config.data.train.views.get(name)
    if view is None or view.source is None or Path(view.source).expanduser() != out:
        words.append(f"'data.train.views.{name}.source={out}'")
    if all(agent.view != name for agent in config.agents):
        words.append(f"'agents[{len(config.agents) - 1}].view={name}'")
    return " ".join(words)


def _tell(report: Report, settings: RephraseSettings, train: str) -> None:
    from mmcorl.tools.rephrase import work_folder

    print(f"{report.reworded} of {report.rows} rows reworded: {report.view}")
    failed = report.rows - report.reworded
    if failed:
        reasons = ", ".join(f"{count} {reason}" for reason, count in report.failed.items())
        kept = "keep their own wording" if settings.failed == "original" else "are marked"
        print(f"{failed} {kept} ({reasons}): {work_folder(report.view) / 'failures.jsonl'}")
    if report.skipped:
        reasons = ", ".join(f"{count} {kind.replace('_', ' ')}" for kind, count in report.skipped.items())
        print(f"{sum(report.skipped.values())} unusable rows of the data are not in it ({reasons})")
    print(f"{report.sent} requests in {report.seconds:g} s, {report.known} replies were known")
    print(f"train on it: {train}")
