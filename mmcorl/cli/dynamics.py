"""`mmcorl dynamics`: the theory's phase portrait, and a run's measured accuracies over it."""

from __future__ import annotations

import argparse
import csv
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mmcorl.cli.options import command
from mmcorl.errors import UserError

if TYPE_CHECKING:
    from mmcorl.analysis.dynamics import Dynamics
    from mmcorl.analysis.trajectories import Judged, Measured, VotesFile
    from mmcorl.report.charts import Panel
    from mmcorl.report.table import Table

COUNTS = (3, 5, 7, 8, 11, 12)
"""Completions whose constants are printed; the paper samples 8 and 12."""
STARTS = ((0.9, 0.2), (0.2, 0.9), (0.6, 0.3), (0.3, 0.35))
"""Takeaway of the paper, a pair that a peer's votes spoil, and one beyond help."""
EXAMPLES = """examples:
  mmcorl dynamics                                   constants, ends and the portrait, into dynamics/
  mmcorl dynamics --completions 12 --start .55,.46 .55,.44      two starts on either side of the border
  mmcorl dynamics --rates 1,0.25                    an agent that learns four times slower bends the border
  mmcorl dynamics --points accuracies.csv           what becomes of your prompts: one line p_A,p_B[,weight] each
  mmcorl dynamics --run runs/quickstart             a run's sampled accuracies over the theory, into the run's folder
  mmcorl dynamics --run runs/self runs/quickstart   two runs side by side
"""


def add(commands: Any) -> None:
    """The command's options."""
    parser = command(commands, "dynamics", _run, "where votes as labels lead: phase portrait, basins, a run", EXAMPLES)
    parser.add_argument(
        "--completions", type=int, metavar="K", help="completions per prompt (default: the run's, or 8)"
    )
    parser.add_argument(
        "--votes", type=int, metavar="M", help="answers that vote, the first K of which train (default: K)"
    )
    parser.add_argument("--start", nargs="+", default=[], metavar="A,B", help="accuracies of two agents to start from")
    parser.add_argument("--rates", metavar="A,B", help="how fast each agent learns (default: 1,1)")
    parser.add_argument("--points", type=Path, metavar="FILE", help="CSV of prompts: p_A,p_B and perhaps a weight")
    parser.add_argument(
        "--run", nargs="+", type=Path, dest="runs", default=[], metavar="DIR", help="runs whose data have known answers"
    )
    parser.add_argument("--by", choices=("tag", "prompt", "all"), help="how a run's prompts are taken together")
    parser.add_argument("--windows", type=int, default=8, metavar="N", help="windows of steps along a run (default: 8)")
    parser.add_argument("--out", type=Path, metavar="DIR", help="folder of dynamics.svg and .html (default: see above)")
    parser.add_argument("--json", action="store_true", help="print the numbers as JSON")


def _run(arguments: argparse.Namespace) -> int:
    from mmcorl.report import dynamics_page as page
    from mmcorl.report.charts import portrait
    from mmcorl.run.folder import atomic_write

    if arguments.by and not arguments.runs:
        raise UserError(f"--by {arguments.by} takes a run's prompts together: add --run DIR")
    tables, panels, told, lead = _of_runs(arguments) if arguments.runs else _of_theory(arguments)
    if arguments.points:
        table, told["points"] = _of_points(arguments.points)
        tables.append(table)
    drawn = portrait(panels, "; ".join(f"{panel.title}: {panel.note}" for panel in panels)) if panels else None
    out: Path = arguments.out or (arguments.runs[0] if arguments.runs else Path("dynamics"))
    if drawn is not None:
        out.mkdir(parents=True, exist_ok=True)
        atomic_write(out / "dynamics.svg", drawn + "\n")
    title = "Theory and measured accuracies" if arguments.runs else "Where votes as labels lead"
    page.write_page(out / "dynamics.html", title, lead, drawn, tables)
    if arguments.json:
        print(json.dumps(told))
        return 0
    _print(tables, lead)
    print(f"page:    {out / 'dynamics.html'}")
    if drawn is not None:
        print(f"picture: {out / 'dynamics.svg'}")
    return 0


def _of_theory(arguments: argparse.Namespace) -> tuple[list[Table], list[Panel], dict[str, Any], str]:
    """Constants and ends of some starts, with own votes and with a peer's."""
    from mmcorl.analysis.dynamics import Dynamics
    from mmcorl.report import dynamics_page as page
    from mmcorl.report.charts import Panel

    starts = [_two(text, "--start") for text in arguments.start] or list(STARTS)
    rates = _two(arguments.rates, "--rates", most=math.inf) if arguments.rates else None
    count = arguments.completions or 8
    try:
        own, pair = (Dynamics(who, count, arguments.votes, rates) for who in ((0, 1), (1, 0)))
    except ValueError as error:
        raise UserError(f"{error}: change --completions, --votes or --rates") from error
    told = {
        "completions": count,
        "votes": pair.ballots,
        "rates": pair.eta.tolist(),
        "starts": [
            {"start": list(start), "own": alone, "peer": both}
            for start, alone, both in zip(
                starts, own.finals(starts).tolist(), pair.finals(starts).tolist(), strict=True
            )
        ],
    }
    said = "the slower one’s opinion weighs more" if rates else "the pair ends where its summed strength points"
    panels = [
        Panel("Own votes (TTRL)", "each agent amplifies what it already believes", own, starts=starts),
        Panel("A peer’s votes (Co-RL)", said, pair, starts=starts),
    ]
    tables = [page.constants(sorted({*COUNTS, count}), arguments.votes), page.ends(starts, pair)]
    lead = "Two agents answer one prompt, each right with some probability. Arrows show which way training moves them."
    return tables, panels, told, lead


def _of_runs(arguments: argparse.Namespace) -> tuple[list[Table], list[Panel], dict[str, Any], str]:
    """Measured paths of runs, and what the theory says of where they began."""
    from mmcorl.analysis.dynamics import Dynamics, basins
    from mmcorl.analysis.trajectories import judge
    from mmcorl.report import dynamics_page as page
    from mmcorl.report.compare import run_labels
    from mmcorl.run.reader import read_run

    for option in ("start", "rates"):
        if getattr(arguments, option):
            raise UserError(f"--{option} is for the theory alone, a run brings its own: leave it out, or --run")
    tables: list[Table] = []
    panels: list[Panel] = []
    records: list[dict[str, Any]] = []
    leads = []
    for run_dir, name in zip(arguments.runs, run_labels([read_run(one) for one in arguments.runs]), strict=True):
        votes, paths = _read_run(run_dir, arguments)
        try:
            cohort = Dynamics(votes.teachers, arguments.completions or votes.completions, arguments.votes)
        except ValueError as error:
            raise UserError(f"{error}: change --completions or --votes") from error
        judged = [judge(path, cohort) for path in paths]
        tables.append(page.run_table(name, judged, votes.agents, cohort.is_pair))
        lead = f"{name}: {page.verdict(judged)}"
        record = {"run": name, **_record(votes, judged)}
        if cohort.agents == 2:
            panels.append(_panel(name, votes, paths, cohort))
            first = [visit for visit in votes.visits if visit.step <= paths[0].points[0].last]
            found = basins([visit.right for visit in first])
            what = f"the prompts of {name}, steps {first[0].step} to {first[-1].step}, as sampled"
            tables.append(page.shares(found, what, votes.agents))
            record["basins"] = vars(found) | {"gain": found.gain}
        else:
            lead += f" A plane shows two agents and this run has {cohort.agents}, so no portrait of it is drawn."
        records.append(record)
        leads.append(lead)
    return tables, panels, {"runs": records}, " ".join(leads)


def _of_points(path: Path) -> tuple[Table, dict[str, Any]]:
    from mmcorl.analysis.dynamics import basins
    from mmcorl.report import dynamics_page as page

    found = basins(*_points(path))
    return page.shares(found, f"the prompts of {path.name}", ("A", "B")), vars(found) | {"gain": found.gain}


def _read_run(run_dir: Path, arguments: argparse.Namespace) -> tuple[VotesFile, list[Measured]]:
    from mmcorl.analysis import trajectories
    from mmcorl.analysis.known import training_prompts
    from mmcorl.answers import Equivalence

    if arguments.windows < 2:
        raise UserError(f"--windows {arguments.windows} leaves no path: give 2 or more")
    prompts = training_prompts(run_dir, trajectories.voted_on(run_dir))
    with Equivalence() as relation:
        votes = trajectories.read_votes(run_dir, prompts, relation)
    return votes, trajectories.measured(votes, prompts, arguments.by, arguments.windows)


def _panel(name: str, votes: VotesFile, measured: Sequence[Measured], cohort: Dynamics) -> Panel:
    from mmcorl.report.charts import Panel

    paths = {
        path.name: [
            (
                (point.p[0], point.p[1]),
                f"{path.name}, steps {point.first} to {point.last}: {point.p[0]:.2f}, {point.p[1]:.2f} "
                f"({point.prompts} prompts)",
            )
            for point in path.points
        ]
        for path in measured
    }
    kind = "a peer’s votes" if cohort.is_pair else "own votes"
    note = "ring: first steps, dot: last steps, dashed: theory from the start"
    return Panel(f"{name}: {kind}", note, cohort, (votes.agents[0], votes.agents[1]), paths=paths)


def _record(votes: VotesFile, judged: Sequence[Judged]) -> dict[str, Any]:
    return {
        "agents": list(votes.agents),
        "teachers": [votes.agents[teacher] for teacher in votes.teachers],
        "completions": votes.completions,
        "visits": len(votes.visits),
        "without_known_answer": votes.unknown,
        "paths": [
            {
                "name": one.name,
                "start": list(one.start.p),
                "end": list(one.end.p),
                "predicted_right": one.predicted,
                "measured_right": one.measured,
                "moves": one.moves,
                "followed": one.followed,
            }
            for one in judged
        ],
    }


def _two(text: str, option: str, most: float = 1.0) -> tuple[float, float]:
    try:
        first, second = (float(part) for part in text.split(","))
    except ValueError as error:
        raise UserError(f"{option} {text!r} is not two numbers: write them as 0.9,0.2") from error
    if not (0 < first < most and 0 < second < most):
        bound = "above 0" if math.isinf(most) else "strictly between 0 and 1, which training never leaves"
        raise UserError(f"{option} {text} must lie {bound}")
    return first, second


def _points(path: Path) -> tuple[list[tuple[float, float]], list[float]]:
    """Rows of a CSV file as points and weights; a first row of names is passed over."""
    if not path.is_file():
        raise UserError(f"--points {str(path)!r} is no file: give a CSV of p_A,p_B[,weight], one prompt per line")
    points, weights = [], []
    with path.open(newline="", encoding="utf-8") as file:
        for number, row in enumerate(csv.reader(file), 1):
            try:
                a, b, *weight = (float(cell) for cell in row)
                good = len(weight) < 2 and 0 <= a <= 1 and 0 <= b <= 1 and all(0 <= w < math.inf for w in weight)
            except ValueError:
                if number == 1 or not row:
                    continue
                good = False
            if not good:
                raise UserError(
                    f"line {number} of {str(path)!r} is {','.join(row)!r}: write p_A,p_B with both in [0, 1], and "
                    "perhaps a weight of 0 or more"
                )
            points.append((a, b))
            weights.append(weight[0] if weight else 1.0)
    if not sum(weights):
        raise UserError(f"{str(path)!r} holds no prompt with a weight: give one line p_A,p_B per prompt")
    return points, weights


def _print(tables: Sequence[Table], lead: str) -> None:
    from rich.console import Console

    from mmcorl.report.dynamics_page import LIMITS
    from mmcorl.report.table import terminal

    console = Console()
    console.print(lead, highlight=False, markup=False)
    console.print(terminal(tables))
    console.print("Limits:", style="bold")
    for limit in LIMITS:
        console.print(f"- {limit}", style="dim", highlight=False, markup=False)
