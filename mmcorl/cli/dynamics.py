"""`mmcorl dynamics`: the theory's phase portrait, and a run's measured accuracies over it."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from mmcorl.analysis.options import DynamicsOptions
from mmcorl.cli.options import command

EXAMPLES = """examples:
  mmcorl dynamics                                   constants, ends and the portrait, into dynamics/
  mmcorl dynamics --completions 12 --start .55,.46 .55,.44      two starts on either side of the border
  mmcorl dynamics --rates 1,0.25                    an agent that learns four times slower bends the border
  mmcorl dynamics --points accuracies.csv           where your prompts end: one line p_A,p_B[,weight] each
  mmcorl dynamics --run runs/quickstart             a run's sampled accuracies over the theory, into the run's folder
  mmcorl dynamics --run runs/self runs/quickstart   two runs side by side
"""


def add(commands: Any) -> None:
    """Add the command and its options."""
    parser = command(commands, "dynamics", _run, "where votes as labels lead: phase portrait, basins, a run", EXAMPLES)
    texts = {name: str(info.description) for name, info in DynamicsOptions.model_fields.items()}
    for name, kind, metavar in (("completions", int, "K"), ("votes", int, "M"), ("windows", int, "N")):
        parser.add_argument(f"--{name}", type=kind, metavar=metavar, help=texts[name])
    parser.add_argument("--start", nargs="+", metavar="A,B", help=texts["start"])
    parser.add_argument("--rates", metavar="A,B", help=texts["rates"])
    parser.add_argument("--points", type=Path, metavar="FILE", help=texts["points"])
    parser.add_argument("--run", nargs="+", type=Path, dest="runs", metavar="DIR", help=texts["runs"])
    parser.add_argument("--by", choices=("tag", "prompt", "all"), help=texts["by"])
    parser.add_argument("--out", type=Path, metavar="DIR", help=texts["out"])
    parser.add_argument("--json", action="store_true", help="print the numbers as JSON")


def _run(arguments: argparse.Namespace) -> int:
    from rich.console import Console

    from mmcorl.report.dynamics import dynamics
    from mmcorl.report.table import terminal

    chosen = {name: value for name in DynamicsOptions.model_fields if (value := getattr(arguments, name)) is not None}
    report = dynamics(DynamicsOptions(**chosen))
    if arguments.json:
        print(json.dumps(report.as_dict()))
        return 0
    console = Console()
    console.print(terminal(report.tables()))
    for paragraph in report.paragraphs():
        console.print(paragraph, highlight=False, markup=False)
    for kind, path in report.files().items():
        print(f"{kind + ':':<8} {path}")
    return 0
