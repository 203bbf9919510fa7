"""The theory's predictions as tables, for the terminal and the page, and its limits."""

from __future__ import annotations

import math
from collections.abc import Sequence

from mmcorl.apps.analysis.dynamics import Basins, Dynamics, growth_rate, self_drift, step_size, vote_margin
from mmcorl.apps.analysis.trajectories import PathCheck, Point, Sides
from mmcorl.run.table import Table, cells

LIMITS = (
    "One prompt at a time, right or wrong: a model shares its weights between prompts, and with more than two answers "
    "the right one can win a vote with less than one half, while wrong answers that differ split theirs.",
    "The expected step of GRPO in small steps, rewards divided by the population standard deviation; no KL, no "
    "clipping, no noise. Time is in units of 1 / eta, where eta, how fast training moves, "
    "is unknown for a real run: compare directions and ends, not times.",
    "The theorem is about two agents with one eta. Own votes are exact for each agent alone; other cohorts and unequal "
    "rates are followed numerically.",
    "An even number of votes can tie. The first answer seen then wins, which for a peer is a fair coin: phi of 12 "
    "votes is phi of 11.",
)
GRADED = (
    "{run}: right means {measure} of at least {threshold:g} with the known answer. Two answers that are right need "
    "not be that much alike themselves, so right ones may split their votes, and a label that is right pays some "
    "answers that are not: for answers that are only alike the theory is an approximation."
)
"""Of runs whose relation is a similarity."""


def constants(counts: Sequence[int], votes: int | None) -> Table:
    """Return phi, q, G and lambda for several numbers of completions."""
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
    """Return where own votes and a peer's votes take each start, and what happens on the way."""
    own = Dynamics((0, 1), pair.completions, pair.votes, pair.rates).finals(starts)
    peer = pair.finals(starts)
    rows = [
        [f"{start[0]:g}, {start[1]:g}", _end(alone), _end(together), _way(pair, start, together)]
        for start, alone, together in zip(starts, own, peer, strict=True)
    ]
    note = "A peer's votes make both right where p_A + p_B > 1, and both wrong below: strength is shared either way."
    if len(set(pair.eta)) > 1:
        note = (
            "With unequal rates the border bends towards the faster agent's side: the slower one's opinion weighs more."
        )
    columns = ["start: A, B", "own votes", "a peer's votes", "on the way with a peer"]
    return _table("Where two agents end", columns, rows, [note])


def shares(basins: Basins, what: str, names: Sequence[str]) -> Table:
    """Return where a distribution of prompts ends, with both ways of training."""
    rows = [
        [f"accuracy of {name}", f"{start:.3f}", f"{own:.3f}", f"{basins.peer:.3f}"]
        for name, start, own in zip(names, basins.start, basins.own, strict=True)
    ]
    notes = [
        f"Repaired by a peer: {basins.repaired:.3f} of prompts that own votes leave wrong with an agent end right "
        f"with both. Spoiled: {basins.spoiled:.3f} that own votes make right with one agent end wrong with both. "
        f"On the line p_A + p_B = 1, counted as one half: {basins.undecided:.3f}."
    ]
    count = f"{basins.prompts:,} {'prompt' if basins.prompts == 1 else 'prompts'}"
    return _table(f"What becomes of {what} ({count})", ["", "start", "own votes", "a peer's votes"], rows, notes)


def run_table(run: str, checks: Sequence[PathCheck], names: Sequence[str], paired: bool) -> Table:
    """Return the measured paths of a run and what the theory predicts from their starts."""
    rows = [
        [
            check.name,
            _point(check.start),
            *([f"{sum(check.start.p):.2f}"] if paired else []),
            _ends(check.predicted, names),
            _point(check.end),
            _ends(check.measured, names),
            f"{check.followed} of {check.moves}" if check.moves else "none",
        ]
        for check in checks
    ]
    columns = ["", f"start: {', '.join(names)}", *(["sum"] if paired else []), "theory", "end", "measured", "moves"]
    error = max(error for check in checks for point in (check.start, check.end) for error in point.error)
    notes = [
        "Shares of sampled completions that are right, in the first and in the last window of steps; standard errors "
        f"up to {error:.2f}. A side is named where it is clear by 1.96 of them. moves: clear changes between windows "
        "that went to the teacher's side, of those whose teacher was clearly on one."
    ]
    return _table(f"{run}: the theory and what was measured", columns, rows, notes)


def verdict(checks: Sequence[PathCheck]) -> str:
    """Return one sentence on how a run and the theory agree."""
    settled = [check for check in checks if None not in (check.predicted, check.measured)]
    right = sum(check.predicted == check.measured for check in settled)
    moves, followed = sum(check.moves for check in checks), sum(check.followed for check in checks)
    close = f" ({len(checks) - len(settled)} too close to tell)" if len(settled) < len(checks) else ""
    return (
        f"{right} of {len(settled)} clear paths end where the theory predicts{close}; {followed} of {moves} clear "
        "moves went to the teacher's side."
    )


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
