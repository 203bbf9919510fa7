"""Teams of agents named on the command line: their evaluations, made first where a run or a checkpoint is given."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from eval_suite.evaluations import is_evaluation, labels_of
from mmcorl.errors import UserError

Evaluating = Callable[[str, Path], argparse.Namespace]
"""The arguments of `mmcorl eval` for a checkpoint and the folder of its evaluation."""


def parse_teams(texts: Sequence[str]) -> list[tuple[str, list[Path]]]:
    """`NAME=DIR,DIR` to names and folders."""
    teams = []
    for text in texts:
        name, equals, paths = text.partition("=")
        folders = [Path(part) for part in paths.split(",") if part]
        if not (name and equals and folders):
            raise UserError(f"--table {text!r} is no team: write NAME=DIR,DIR with the folder of each of its agents")
        teams.append((name, folders))
    names = [name for name, _ in teams]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise UserError(f"--table names the team {twice!r} twice: give each its own name")
    return teams


def members_of(path: Path) -> list[Path]:
    """What a folder stands for: itself, the evaluations in it, or the checkpoints of a run that has ended.

    A folder that is none of these stands for itself.
    """
    if is_evaluation(path) or not path.is_dir():
        return [path]
    inside = sorted(part for part in path.iterdir() if is_evaluation(part))
    final = path / "final"
    agents = sorted(part for part in final.iterdir() if part.is_dir()) if final.is_dir() else []
    return inside or agents or [path]


def evaluated(
    teams: Sequence[tuple[str, Sequence[Path]]], evaluation: Evaluating | None, out: Path | None
) -> list[tuple[str, list[Path]]]:
    """The evaluation folder of every agent of every team.

    A run stands for the agents in its `final`, and a checkpoint is evaluated into OUT/TEAM/AGENT, where what is
    already answered stays; a folder of evaluations stands for these.

    Raises:
        UserError: a checkpoint, and no word on how to evaluate it or where to.
    """
    found = []
    for team, paths in teams:
        members = []
        parts = [part for path in paths for part in members_of(path)]
        for part, label in zip(parts, labels_of(parts), strict=True):
            if not (part / "config.json").is_file() or is_evaluation(part):
                members.append(part)
                continue
            if evaluation is None or out is None:
                raise UserError(
                    f"{str(part)!r} is a checkpoint that has not been evaluated: say how and where, as in "
                    "--evaluate 'math500 --samples 4 --temperature 0.6' --out evals/matched"
                )
            folder = out / team / label.replace("/", "-")
            _evaluate(evaluation(str(part), folder))
            members.append(folder)
        found.append((team, members))
    return found


def _evaluate(arguments: argparse.Namespace) -> None:
    from eval_suite.commands import evaluate

    arguments.say = lambda text: print(text, file=sys.stderr)
    # Its own table is progress here: results go to stdout.
    with contextlib.redirect_stdout(sys.stderr):
        evaluate(arguments)
