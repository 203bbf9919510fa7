"""Kills, full disks, damage and hostile input, one after another, and the table of what held.

    python -m tests.drills                     all of it: about 20 minutes on two quiet cores
    python -m tests.drills --only damage       one area; `--only damage/COMMIT` those whose name begins so
    python -m tests.drills --list

Each drill works in a temporary folder with limits of time and memory. `survived` is an end as promised: the bytes of an
uninterrupted run, or a refusal in one sentence; `silent` is exit 0 with other results. Some drills need root (a small
disk, files that cannot be changed) or strace, and count as unclear without.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

os.environ |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "COLUMNS": "200", "TRANSFORMERS_VERBOSITY": "error"}
os.environ.pop("MMCORL_TEST_SECRET", None)

import mmcorl.training  # noqa: F401  Most of what takes the time.
from tests.drills import (
    commands,
    configs,
    damage,
    data,
    disk,
    kills,
    models,
    pictures,
    responses,
    sandbox,
    signals,
    trust,
    view,
)
from tests.drills.lab import Drill, Lab, Verdict

DRILLS = [
    *kills.DRILLS,
    *signals.DRILLS,
    *disk.DRILLS,
    *damage.DRILLS,
    *configs.DRILLS,
    *data.DRILLS,
    *models.DRILLS,
    *pictures.DRILLS,
    *responses.DRILLS,
    *commands.DRILLS,
    *sandbox.DRILLS,
    *trust.DRILLS,
    *view.DRILLS,
]
MEASURED = ("configs", "data", "models", "pictures", "responses", "sandbox")
"""Areas whose memory and seconds are told: those of hostile rows, files and programs."""


def run_drill(lab: Lab, drill: Drill) -> dict[str, object]:
    """The record of one drill."""
    started = time.monotonic()
    lab.ended.clear()
    try:
        verdict = drill.body(lab)
    except Exception as error:
        verdict = Verdict("unclear", f"the drill itself: {type(error).__name__}: {error}"[:300])
    return {
        "area": drill.area,
        "name": drill.name,
        "outcome": verdict.outcome,
        "word": verdict.word[:300],
        "seconds": round(time.monotonic() - started, 2),
        "command_seconds": round(max((ended.seconds for ended in lab.ended), default=0), 2),
        "peak_mb": max((ended.peak_mb for ended in lab.ended), default=0),
    }


def table(records: list[dict[str, object]]) -> str:
    """The counts by area."""
    rows = [("area", "tried", "survived", "lost or wrong", "unclear")]
    for area in dict.fromkeys(str(record["area"]) for record in records):
        counts = Counter(record["outcome"] for record in records if record["area"] == area)
        wrong = [f"{counts[kind]} {kind}" for kind in ("lost", "silent", "traceback", "hang") if counts[kind]]
        rows.append(
            (area, str(counts.total()), str(counts["survived"]), ", ".join(wrong) or "0", str(counts["unclear"]))
        )
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.drills", description=__doc__.partition("\n")[0])
    parser.add_argument("--only", action="append", default=[], metavar="AREA[/NAME]", help="these; may be repeated")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write a record for each drill")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="work in this folder and keep it")
    parser.add_argument("--list", action="store_true", help="print the names of the drills")
    options = parser.parse_args()
    chosen = [
        drill
        for drill in DRILLS
        if not options.only or any(f"{drill.area}/{drill.name}".startswith(only) for only in options.only)
    ]
    if options.list or not chosen:
        print("\n".join(f"{drill.area}/{drill.name}" for drill in chosen) or "no drill has such a name: see --list")
        return 0 if chosen else 2
    signal.signal(signal.SIGINT, signal.default_int_handler)
    root = options.keep or Path(tempfile.mkdtemp(prefix="mmcorl-drills-"))
    root.mkdir(parents=True, exist_ok=True)
    root.chmod(0o755)
    os.environ.setdefault("MMCORL_CACHE", str(root / "cache"))
    lab, records = Lab(root), []
    try:
        for drill in chosen:
            record = run_drill(lab, drill)
            records.append(record)
            if not options.keep:
                shutil.rmtree(root / "drill", ignore_errors=True)
            if record["outcome"] != "survived" or sys.stderr.isatty():
                print(f"{drill.area}/{drill.name}: {record['outcome']}: {record['word']}", file=sys.stderr, flush=True)
            if options.json:
                options.json.write_text("".join(json.dumps(item) + "\n" for item in records))
    finally:
        if not options.keep:
            shutil.rmtree(root, ignore_errors=True)
    print(table(records))
    failed = [record for record in records if record["outcome"] != "survived"]
    print()
    for record in failed:
        print(f"{record['area']}/{record['name']}: {record['outcome']}: {record['word']}")
    measured = [record for record in records if record["area"] in MEASURED and record["peak_mb"]]
    if measured:
        print("\nseconds  peak MB  hostile input")
        for record in sorted(measured, key=lambda item: (-int(str(item["peak_mb"])), str(item["name"])))[:40]:
            print(f"{record['command_seconds']:>7}  {record['peak_mb']:>7}  {record['area']}/{record['name']}")
    return 1 if any(record["outcome"] not in ("survived", "unclear") for record in records) else 0


if __name__ == "__main__":
    sys.exit(main())
