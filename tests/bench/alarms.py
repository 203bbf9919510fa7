"""Label-free alarms against what known answers say: which runs collapsed, which alarms came, and when.

    python -m tests.bench.alarms RUN [RUN ...]

A run counts as healthy if its accuracy, mean over the agents and their last evaluation, rose by more than `GAIN`. The
thresholds of `mmcorl.run.alarms` were chosen on the runs of docs/thesis.md.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from statistics import fmean

from mmcorl.report.table import Table, cells, markdown
from mmcorl.run.alarms import Watch
from mmcorl.run.reader import read_run

GAIN = 0.02


def row(path: Path) -> dict[str, object]:
    """What became of one run, and its alarms."""
    run = read_run(path)
    ends = [run.accuracy(name, agent) for name in run.sets for agent in run.agents]
    starts, finals = ([value for one in ends if (value := getattr(one, at)) is not None] for at in ("start", "end"))
    alarms = Watch(lines=run.metrics).alarms
    return {
        "run": "/".join(path.parts[-3:]),
        "steps": run.steps_done,
        "start": fmean(starts),
        "end": fmean(finals),
        "healthy": fmean(finals) - fmean(starts) > GAIN,
        "alarms": [{"step": alarm.step, "kind": alarm.kind} for alarm in alarms],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write a record for each run")
    options = parser.parse_args()
    rows = [row(path) for path in options.runs]
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")
    body = [
        cells(
            one["run"],
            one["steps"],
            f"{one['start']:.3f}",
            f"{one['end']:.3f}",
            ", ".join(f"{alarm['kind']} at {alarm['step']}" for alarm in one["alarms"]) or "none",  # type: ignore[attr-defined]
        )
        for one in rows
    ]
    heads = ("run", "steps", "start", "end", "alarms")
    print(markdown([Table("Alarms", [(head, "left") for head in heads], body)]))
    for healthy, what in ((True, "healthy runs, of which with a false alarm"), (False, "others, of which missed")):
        own = [one for one in rows if one["healthy"] is healthy]
        print(f"{len(own)} {what}: {sum(bool(one['alarms']) is healthy for one in own)}")


if __name__ == "__main__":
    main()
