"""What the theory says, as tables of words and numbers: the same for the terminal and for the page."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from markupsafe import Markup

from mmcorl.analysis.dynamics import (
    Basins,
    Dynamics,
    growth_rate,
    self_drift,
    step_size,
    vote_margin,
)
from mmcorl.analysis.trajectories import Judged, Point, Sides
from mmcorl.report import page
from mmcorl.report.table import Table, cells
from mmcorl.run.folder import atomic_write

LIMITS = (
    "One prompt at a time, right or wrong: a model shares its weights between prompts, and with more than two answers "
    "the right one can win a vote with less than one half, while wrong answers that differ split theirs.",
    "The expected step of GRPO in small steps, rewards divided by the population standard deviation; no KL, no "
    "clipping, no noise. Time is in units of 1 / eta, which nobody knows for a real run: compare directions and ends, "
    "not times.",
    "The theorem is about two agents with one eta. Own votes are exact for each agent alone; other cohorts and unequal "
    "rates are followed numerically.",
    "An even number of votes can tie. The first answer seen then wins, which for a peer is a fair coin: phi of 12 "
    "votes is phi of 11.",
)


def constants(counts: Sequence[int], votes: int | None) -> Table:
    """phi, q, G and lambda for several numbers of completions."""
    rows = []
    for count in counts:
        ballots = votes if votes and votes >= count else count
        tie = math.comb(ballots, ballots // 2) / 2.0**ballots if ballots % 2 == 0 else 0.0
        rows.append(
            [
                f"{count}" if ballots == count else f"{count} of {ballots}",
                *(f"{float(vote_margin(p, ballots)):+.3f}" for p in (0.2, 0.6)),
                *(f"{float(step_size(p, count)):.3f}" for p in (0.2, 0.5)),
                *(f"{float(self_drift(p, count, ballots)):+.3f}" for p in (0.2, 0.6)),
                f"{growth_rate(count, ballots):.3f}",
                f"{tie:.3f}" if tie else "never",
            ]
        )
    columns = ["K", "φ(.2)", "φ(.6)", "q(.2)", "q(½)", "G(.2)", "G(.6)", "λ", "tie"]
    notes = [
        "φ: how surely a teacher of that accuracy pushes to the right answer, or away from it; its vote is right with "
        "(1 + φ) / 2. q: how fast its pupil follows. G: what own votes push by. λ: how fast a pair leaves the saddle "
        "at (½, ½). tie: chance of a tied vote at p = ½."
    ]
    return _table("What K completions make of an accuracy", columns, rows, notes)


def ends(starts: Sequence[tuple[float, float]], pair: Dynamics) -> Table:
    """Where own votes and a peer's votes take each start, and what happens on the way."""
    own = Dynamics((0, 1), pair.completions, pair.votes, pair.rates).finals(starts)
    peer = pair.finals(starts)
    rows = []
    for start, alone, together in zip(starts, own, peer, strict=True):
        rows.append([f"{start[0]:g}, {start[1]:g}", _end(alone), _end(together), _way(pair, start, together)])
    return _table(
        "Where two agents end",
        ["start: A, B", "own votes", "a peer's votes", "on the way with a peer"],
        rows,
        ["A peer's votes make both right where p_A + p_B > 1, and both wrong below: strength is shared either way."]
        if len(set(pair.eta)) == 1
        else [
            "With unequal rates the border bends towards the faster agent's side: the slower one's opinion weighs more."
        ],
    )


def shares(told: Basins, what: str, names: Sequence[str]) -> Table:
    """Where a distribution of prompts ends, with both ways of training."""
    a, b = names
    rows = [
        [f"accuracy of {a}", _share(told.start[0]), _share(told.own[0]), _share(told.peer)],
        [f"accuracy of {b}", _share(told.start[1]), _share(told.own[1]), _share(told.peer)],
    ]
    notes = [
        f"Repaired by a peer: {_share(told.repaired)} of prompts that own votes leave wrong with an agent end right "
        f"with both. Spoiled: {_share(told.spoiled)} that own votes make right with one agent end wrong with both. "
        f"On the line p_A + p_B = 1, counted as one half: {_share(told.undecided)}."
    ]
    count = f"{told.prompts:,} {'prompt' if told.prompts == 1 else 'prompts'}"
    return _table(f"What becomes of {what} ({count})", ["", "start", "own votes", "a peer's votes"], rows, notes)


def run_table(run: str, judged: Sequence[Judged], names: Sequence[str], paired: bool) -> Table:
    """Measured paths of a run beside what the theory says of their starts."""
    rows = [
        [
            one.name,
            _point(one.start),
            *([f"{sum(one.start.p):.2f}"] if paired else []),
            _ends(one.predicted, names),
            _point(one.end),
            _ends(one.measured, names),
            f"{one.followed} of {one.moves}" if one.moves else "none",
        ]
        for one in judged
    ]
    columns = ["", f"start: {', '.join(names)}", *(["sum"] if paired else []), "theory", "end", "measured", "moves"]
    error = max(error for one in judged for point in (one.start, one.end) for error in point.error)
    notes = [
        "Shares of sampled completions that are right, in the first and in the last window of steps; standard errors "
        f"up to {error:.2f}. A side is named where it is clear by 1.96 of them. moves: clear changes between windows "
        "that went to the teacher's side, of those whose teacher was clearly on one."
    ]
    return _table(f"{run}: the theory and what was measured", columns, rows, notes)


def verdict(judged: Sequence[Judged]) -> str:
    """One sentence on how a run and the theory agree."""
    settled = [one for one in judged if None not in (one.predicted, one.measured)]
    right = sum(one.predicted == one.measured for one in settled)
    moves, followed = sum(one.moves for one in judged), sum(one.followed for one in judged)
    told = f"{right} of {len(settled)} paths that can be told are where the theory puts their start"
    left = len(judged) - len(settled)
    told += f" ({left} too close to tell)" if left else ""
    return f"{told}; {followed} of {moves} clear moves went to the teacher's side."


def write_page(path: Path, title: str, lead: str, portrait: Markup | None, tables: Sequence[Table]) -> None:
    """Write a page that loads nothing and has no scripts."""
    text = page.render(
        "dynamics.html", kind="dynamics", title=title, lead=lead, portrait=portrait, tables=tables, limits=LIMITS
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    atomic_write(path, text)


def _table(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]], notes: Sequence[str] = ()) -> Table:
    return Table(title, [(column, "left") for column in columns], [cells(*row) for row in rows], notes)


def _end(finals: Sequence[float]) -> str:
    a, b = finals
    if 0.5 in (a, b):
        return "on the border"
    if a == b:
        return "both right" if a else "both wrong"
    return "only A right" if a else "only B right"


def _way(pair: Dynamics, start: tuple[float, float], finals: Sequence[float]) -> str:
    if 0.5 in finals:
        return "along the line towards (½, ½)"
    sides = [p > 0.5 for p in start]
    if sides[0] == sides[1]:
        return "both move the same way at once"
    turning = sides.index(not finals[0])
    time = pair.crossing_time(start, turning)
    if time is None:
        return ""
    other = float(pair.run(start, [time])[0][1 - turning])
    first, second = "AB"[turning], "AB"[1 - turning]
    lowest = "lowest" if finals[0] else "highest"
    return f"{first} passes ½ at t = {time:.2f}, {second} is at its {lowest} then, {other:.3f}"


def _ends(sides: Sides, names: Sequence[str]) -> str:
    if sides is None:
        return "too close to tell"
    if len(set(sides)) == 1:
        whole = {1: "", 2: "both "}.get(len(sides), "all ")
        return f"{whole}{'right' if sides[0] else 'wrong'}"
    return f"only {', '.join(name for name, right in zip(names, sides, strict=True) if right)} right"


def _point(point: Point) -> str:
    return ", ".join(f"{p:.2f}" for p in point.p)


def _share(value: float) -> str:
    return f"{value:.3f}"
