"""The table of where a step's time goes: `mmcorl train ... profile=true` prints and writes it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

from mmcorl.run.table import Cell, Table, plain

OPERATORS = 12
NAME = 34
"""Characters of an operator's name."""
ELSEWHERE = ("evaluate", "checkpoint", "export", "compare")
"""Phases in timings.jsonl that are not part of a training step."""


def table(folder: Path, timings: Sequence[Mapping[str, Any]], agents: Sequence[str]) -> str:
    """Return seconds of an average step by part and agent, top operators, tokens per second and arithmetic rates.

    `folder` holds the JSON files that the ranks left (`mmcorl.trainer.profiler`); an agent's numbers are means over
    its ranks.
    """
    ranks: dict[str, list[Any]] = {name: [] for name in agents}
    for file in sorted(folder.glob("*.json")):
        record = json.loads(file.read_text(encoding="utf-8"))
        ranks[record["agent"]].append(record)
    first = ranks[agents[0]][0]
    steps = [line["seconds"] for line in timings if line["step"] in first["timed"]]
    parts, totals = _seconds(ranks, steps)
    # Self seconds by operator and agent, of kernels where a device has any.
    device = any(value[3] for records in ranks.values() for record in records for value in record["operators"])
    operators: dict[str, dict[str, float]] = {}
    for name, records in ranks.items():
        for record in records:
            for values in record["operators"]:
                row = operators.setdefault(values[0], {})
                row[name] = row.get(name, 0.0) + values[3 if device else 2] / len(records)
    sums = {name: sum(row.get(name, 0.0) for row in operators.values()) or 1.0 for name in ranks}
    kind = "kernels" if device else "operators"
    top = sorted(operators, key=lambda key: -sum(operators[key].values()))[:OPERATORS]
    timed = f"step {first['timed'][0]}"
    if len(first["timed"]) > 1:
        timed = f"steps {first['timed'][0]} to {first['timed'][-1]}"
    traced = f"step {first['traced']}"
    if first["traced"] in first["timed"]:
        traced += ", timed while traced and therefore slower"
    tables = [
        _table(f"Where a step's time goes: seconds, mean of {timed}", "part", agents, parts, totals),
        _table(f"Top {kind}: seconds, {traced}", kind, agents, {key: operators[key] for key in top}, sums),
    ]
    notes = [_rates(name, records) for name, records in ranks.items()]
    notes.append("Arithmetic: 6 operations per parameter and token, against the rate of square matrix products here.")
    return plain([tables[0], replace(tables[1], notes=notes)])


def _seconds(
    ranks: Mapping[str, Sequence[Any]], steps: Sequence[Mapping[str, float]]
) -> tuple[dict[str, dict[str, float]], dict[str, float]]:
    """Return seconds per step by `call  part` and agent, and of the whole step by agent."""
    vote, apart = (
        sum(line.get(phase, 0.0) for line in steps for phase in phases) / len(steps)
        for phases in (("vote", "log"), ELSEWHERE)
    )
    whole = {name: fmean(v for record in records for v in record["seconds"]) - apart for name, records in ranks.items()}
    rows: dict[str, dict[str, float]] = {}
    for name, records in ranks.items():
        for record in records:
            for call, part, value in record["parts"]:
                row = rows.setdefault(f"{call}  {part}", {})
                row[name] = row.get(name, 0.0) + value / len(steps) / len(records)
    # Parts that some agents lack follow those of the same call.
    rows = {part: rows[part] for part in sorted(rows, key=lambda part: (part.split()[0], part.endswith("  other")))}
    busy = {name: sum(row.get(name, 0.0) for row in rows.values()) for name in ranks}
    rows["vote and logs"] = dict.fromkeys(ranks, vote)
    rows["waiting for others"] = {name: max(0.0, whole[name] - vote - busy[name]) for name in ranks}
    rows["step"] = whole
    return rows, whole


def _table(
    title: str, kind: str, agents: Sequence[str], rows: Mapping[str, Mapping[str, float]], totals: Mapping[str, float]
) -> Table:
    body = []
    for key, row in rows.items():
        # Operators often differ in their ends.
        name = key if len(key) <= NAME else f"{key[: NAME // 2 - 1]}...{key[-(NAME // 2 - 2) :]}"
        values = [Cell(f"{row[a]:.4f}", f"{row[a] / totals[a]:4.0%}") if a in row else Cell("") for a in agents]
        body.append([Cell(name), *values])
    return Table(title, [(kind, "left"), *((name, "right") for name in agents)], body)


def _rates(name: str, records: Sequence[Mapping[str, Any]]) -> str:
    first = records[0]
    total = {key: sum(timing[key] for timing in first["timings"]) for key in first["timings"][0]}
    work = total["rollout_seconds"] + total["update_seconds"] + total["sync_seconds"]
    # A worker counts the operations of all its ranks together.
    reached = total["update_flops"] / total["update_seconds"] / first["ranks"]
    possible = sum(record["matmul_flops"] for record in records) / len(records)
    where = first["device"] if first["ranks"] == 1 else f"{first['ranks']} x {first['device']}"
    return (
        f"{name}: {total['completion_tokens'] / work:,.0f} completion tokens per busy second; update {_flops(reached)} "
        f"of {_flops(possible)} ({first['dtype']}, {where}): {reached / possible:.0%}"
    )


def _flops(value: float) -> str:
    return f"{value / 1e12:.1f} TFLOP/s" if value >= 1e12 else f"{value / 1e9:.2f} GFLOP/s"
