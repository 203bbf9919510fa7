"""Where the time of a step goes, on one screen: what `mmcorl train ... profile=true` prints and keeps."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

OPERATORS = 12
NAME, NUMBER, SHARE = 34, 11, 6
"""Widths of columns."""
ELSEWHERE = ("evaluate", "checkpoint", "export", "compare")
"""Phases of a run that are no part of a step, though they may stand on its line in timings.jsonl."""


def table(folder: Path, timings: Sequence[Mapping[str, Any]], agents: Sequence[str]) -> str:
    """Seconds of an average step by part and agent, top operators, tokens per second and arithmetic rates.

    Args:
        folder: with the JSON files that the ranks left (`mmcorl.trainer.profiler`).
        timings: lines of timings.jsonl.
        agents: in the order of the columns; an agent's numbers are means over its ranks.
    """
    ranks: dict[str, list[Any]] = {name: [] for name in agents}
    for file in sorted(folder.glob("*.json")):
        record = json.loads(file.read_text(encoding="utf-8"))
        ranks[record["agent"]].append(record)
    first = ranks[agents[0]][0]
    lines_of = [line["seconds"] for line in timings if line["step"] in first["timed"]]
    vote, apart = (
        sum(line.get(phase, 0.0) for line in lines_of for phase in phases) / len(lines_of)
        for phases in (("vote", "log"), ELSEWHERE)
    )
    step = {name: fmean(value for one in own for value in one["seconds"]) - apart for name, own in ranks.items()}
    parts = {name: _parts(records, len(lines_of)) for name, records in ranks.items()}
    rows: dict[str, dict[str, float]] = {}
    for name, own in parts.items():
        for part, value in own.items():
            rows.setdefault(part, {})[name] = value
    # Parts that some agents lack come behind those of the same call.
    rows = {part: rows[part] for part in sorted(rows, key=lambda part: (part.split()[0], part.endswith("  other")))}
    rows["vote and logs"] = dict.fromkeys(agents, vote)
    rows["waiting for others"] = {name: max(0.0, step[name] - vote - sum(parts[name].values())) for name in agents}
    rows["step"] = step
    timed = _numbers(first["timed"])
    traced = f"operators of step {first['traced']}" + (
        ", traced while timed and slower for it" if first["traced"] in first["timed"] else ", traced"
    )
    lines = [f"where a step's time goes: seconds of {timed} on average, {traced}", _head("", agents)]
    lines += [
        _row(part, agents, {name: (value, value / step[name]) for name, value in own.items()})
        for part, own in rows.items()
    ]
    device = any(value[3] for records in ranks.values() for one in records for value in one["operators"])
    column = 3 if device else 2
    operators: dict[str, dict[str, float]] = {}
    for name, records in ranks.items():
        for one in records:
            for values in one["operators"]:
                own = operators.setdefault(values[0], {})
                own[name] = own.get(name, 0.0) + values[column] / len(records)
    sums = {name: sum(own.get(name, 0.0) for own in operators.values()) for name in agents}
    top = sorted(operators, key=lambda key: -sum(operators[key].values()))[:OPERATORS]
    lines += ["", _head("kernels" if device else "operators, by themselves", agents)]
    for key in top:
        shares = {name: (value, value / (sums[name] or 1.0)) for name, value in operators[key].items()}
        lines.append(_row(key, agents, shares))
    lines.append("")
    lines += [_rates(name, records) for name, records in ranks.items()]
    lines.append("arithmetic: 6 operations per parameter and token, beside what square matrices reach here")
    return "\n".join(lines) + "\n"


def _parts(records: Sequence[Mapping[str, Any]], steps: int) -> dict[str, float]:
    """Seconds per step by `call, part`, a mean over ranks."""
    found: dict[str, float] = {}
    for record in records:
        for call, part, value in record["parts"]:
            key = f"{call}  {part}"
            found[key] = found.get(key, 0.0) + value / steps / len(records)
    return found


def _rates(name: str, records: Sequence[Mapping[str, Any]]) -> str:
    one = records[0]
    total = {key: sum(timing[key] for timing in one["timings"]) for key in one["timings"][0]}
    work = total["rollout_seconds"] + total["update_seconds"] + total["sync_seconds"]
    # What a worker says of amounts is of all ranks together.
    reached = total["update_flops"] / total["update_seconds"] / one["ranks"]
    possible = sum(record["matmul_flops"] for record in records) / len(records)
    where = one["device"] if one["ranks"] == 1 else f"{one['ranks']} x {one['device']}"
    return (
        f"{name}: {total['completion_tokens'] / work:,.0f} completion tokens/s of its work; update {_flops(reached)} "
        f"of {_flops(possible)} ({one['dtype']}, {where}): {reached / possible:.0%}"
    )


def _flops(value: float) -> str:
    return f"{value / 1e12:.1f} TFLOP/s" if value >= 1e12 else f"{value / 1e9:.2f} GFLOP/s"


def _numbers(steps: Sequence[int]) -> str:
    return f"step {steps[0]}" if len(steps) == 1 else f"steps {steps[0]} to {steps[-1]}"


def _head(title: str, agents: Sequence[str]) -> str:
    return f"{title:<{NAME}}" + "".join(f"{name[: NUMBER + SHARE - 1]:>{NUMBER + SHARE}}" for name in agents)


def _row(title: str, agents: Sequence[str], values: Mapping[str, tuple[float, float]]) -> str:
    cells = (
        f"{values[name][0]:>{NUMBER}.4f}{values[name][1]:>{SHARE}.0%}" if name in values else " " * (NUMBER + SHARE)
        for name in agents
    )
    # Operators often differ in their ends.
    shown = title if len(title) < NAME else f"{title[: NAME // 2 - 2]}...{title[-(NAME // 2 - 2) :]}"
    return f"{shown:<{NAME}}" + "".join(cells)
