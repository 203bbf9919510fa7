"""The `mmcorl` command. Heavy imports wait until the arguments are understood.

Results go to stdout, progress and errors to stderr. Exit status: 0 done, 1 failed in work, 2 refused input,
130 interrupted.
"""

from __future__ import annotations

import argparse
import json
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mmcorl import __version__
from mmcorl.errors import Failed, Refused

EPILOG = """examples:
  mmcorl train configs/quickstart.yaml                     co-train two tiny families on images, no labels
  mmcorl train configs/quickstart.yaml supervision.kind=self --run-dir runs/self
  mmcorl report runs/quickstart runs/self                  compare runs, write report.html into the first
  mmcorl families                                          which model families are supported
  mmcorl check-adapter path/to/checkpoint                  does a checkpoint work with its adapter?
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status."""
    parser = _parser()
    # argparse takes no positional arguments after an option that follows others; overrides may stand anywhere.
    arguments, rest = parser.parse_known_args(argv)
    if any(item.startswith("-") for item in rest) or (rest and not hasattr(arguments, "overrides")):
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    if rest:
        arguments.overrides += rest
    try:
        return int(arguments.run(arguments))
    except KeyboardInterrupt:
        print(f"mmcorl: interrupted{arguments.after_interrupt}", file=sys.stderr)
        return 130
    except Failed as error:
        print(f"mmcorl: {error}", file=sys.stderr)
        return 1
    except Exception as error:
        if _is_for_the_user(error):
            print(f"mmcorl: {error}", file=sys.stderr)
            return 2
        traceback.print_exc()
        return 1


def _is_for_the_user(error: Exception) -> bool:
    """Whether an error is a sentence about the input. Adapters import torch, so theirs is looked up late."""
    if isinstance(error, Refused):
        return True
    base = sys.modules.get("model_adapters.base")
    return base is not None and isinstance(error, base.AdapterError)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="mmcorl",
        description="Co-train models of different families with reinforcement learning and no labels: "
        "each agent votes over its own samples and is rewarded for agreeing with a peer's vote.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"mmcorl {__version__}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")

    train = _command(commands, "train", _train, "run a config, or resume it: the same command goes on")
    train.set_defaults(after_interrupt=": the same command goes on from the last checkpoint")
    train.add_argument("config", metavar="CONFIG", help="YAML file, see configs/")
    train.add_argument("overrides", nargs="*", metavar="key.sub=value", help="settings that differ from the file")
    train.add_argument("--run-dir", type=Path, help="folder of the run (default: runs/NAME)")
    train.add_argument("--quiet", action="store_true", help="no progress on stderr")
    train.add_argument("--json", action="store_true", help="print the summary as JSON")

    report = _command(commands, "report", _report, "table and report.html of a run, beside others if given")
    report.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="run folders; the report goes into the first")
    report.add_argument("--png", type=Path, help="also draw the overview as a picture")
    report.add_argument("--json", action="store_true", help="print the table as JSON")

    families = _command(commands, "families", _families, "the supported model families and what each needs")
    families.add_argument("--json", action="store_true", help="print as JSON")

    check = _command(commands, "check-adapter", _check_adapter, "run the adapter contract on a checkpoint")
    check.add_argument("model", metavar="MODEL", help="checkpoint folder or hub id")
    check.add_argument("--adapter", metavar="PKG.MODULE:CLASS", help="an adapter from outside")
    check.add_argument("--json", action="store_true", help="print as JSON")

    zoo = _command(commands, "zoo", _zoo, "tiny warm-started checkpoints for demonstrations; list or build them")
    zoo.add_argument("names", nargs="*", metavar="NAME[@SEED]", help="build these and print their folders")
    return parser


def _command(commands: Any, name: str, run: Any, help_text: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(name, help=help_text, description=help_text)
    parser.set_defaults(run=run, after_interrupt="")
    return parser


def _train(arguments: argparse.Namespace) -> int:
    from mmcorl import config as settings

    config = settings.load(arguments.config, arguments.overrides)
    run_dir: Path = arguments.run_dir or Path("runs") / config.name

    from mmcorl.train import train

    summary = train(config, run_dir, quiet=arguments.quiet)
    if arguments.json:
        print(json.dumps(summary))
    else:
        _print_comparison([run_dir])
        print(f"report: {run_dir / 'report.html'}\nweights: {run_dir / 'final'}")
    return 0


def _report(arguments: argparse.Namespace) -> int:
    from mmcorl import report as reporting

    page = reporting.build_report(arguments.runs[0], arguments.runs[1:])
    if arguments.png:
        reporting.overview_png(arguments.runs[0], arguments.runs[1:], arguments.png)
    if arguments.json:
        print(json.dumps(reporting.comparison(arguments.runs)))
    else:
        _print_comparison(arguments.runs)
        print(f"report: {page}")
    return 0


def _print_comparison(runs: Sequence[Path]) -> None:
    from rich.console import Console

    from mmcorl import report as reporting

    Console().print(reporting.comparison_table(reporting.comparison(runs)))


def _families(arguments: argparse.Namespace) -> int:
    from dataclasses import asdict

    from model_adapters.registry import families

    rows = families()
    if arguments.json:
        print(json.dumps([asdict(row) for row in rows]))
        return 0
    for row in rows:
        name, *facts = asdict(row).items()
        print(_cell(name[1]))
        for key, value in facts:
            if _cell(value):
                print(f"  {key.replace('_', ' ') + ':':<24}{_cell(value)}")
    return 0


def _cell(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _check_adapter(arguments: argparse.Namespace) -> int:
    from dataclasses import asdict

    from model_adapters.contract import check_adapter

    checks = check_adapter(arguments.model, arguments.adapter)
    if arguments.json:
        print(json.dumps([asdict(check) for check in checks]))
    else:
        for check in checks:
            mark = "skip" if check.skipped_reason else "ok  " if check.passed else "FAIL"
            print(f"{mark}  {check.name}: {check.skipped_reason or check.detail}")
    return 0 if all(check.passed or check.skipped_reason for check in checks) else 1


def _zoo(arguments: argparse.Namespace) -> int:
    from mmcorl import zoo

    if not arguments.names:
        for name, entry in zoo.ZOO.items():
            print(f"zoo:{name:<22} {entry.describe()}")
    for name in arguments.names:
        print(zoo.resolve(f"zoo:{name.removeprefix('zoo:')}"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
