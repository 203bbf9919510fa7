"""The page of a run, and that of a run beside others."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any

from mmcorl.apps.analysis.statistics import is_within_noise
from mmcorl.apps.report import diagnosis, links, page
from mmcorl.apps.report.caveats import caveats
from mmcorl.apps.report.compare import comparison_rows, run_labels
from mmcorl.apps.report.curves import agent_colours, optimizer_charts, training_charts, validation_charts
from mmcorl.apps.report.difference import difference_tables, settings_table
from mmcorl.apps.report.gallery import answered_prompts, gallery_entries, gallery_title, same_answers
from mmcorl.run.folder import atomic_write
from mmcorl.run.provenance import read as read_made
from mmcorl.run.provenance import written
from mmcorl.run.reader import RunFiles, StartEnd, dig, mapping, number, read_run
from mmcorl.run.summary import memory_sentences

MAX_EXAMPLES = 50
COMPARISON = "comparison.html"
"""The page of all runs of a sweep, in its folder."""
LONGEST_NAME = 100
"""Bytes of a page's name by its runs; beyond, a hash stands for them."""


def build_report(run_dir: Path, others: Sequence[Path] = (), out: Path | None = None) -> Path:
    """Write the page of a run, finished or not, or that of a run beside others; return its path.

    By default `report.html` and `comparison_A_B.html` in the first run's folder, named by the runs. The page is one
    file that loads nothing: images are data URIs, charts are inline SVG, and its one script is its own. All text of
    models and data is escaped. The file is replaced in one piece.
    """
    run_dir = Path(run_dir)
    unlike = [Path(path) for path in others if Path(path).resolve() != run_dir.resolve()]
    runs = [read_run(path) for path in [run_dir, *unlike]]
    page_path = out or run_dir / (_comparison_name(run_dir, unlike) if unlike else "report.html")
    page_path.parent.mkdir(parents=True, exist_ok=True)
    context = _comparison(runs, page_path) if unlike else _of_one(runs[0], page_path)
    atomic_write(page_path, page.render("comparison.html" if unlike else "run.html", **_shared(runs), **context))
    return page_path


def _comparison_name(run_dir: Path, others: Sequence[Path]) -> str:
    """Return the name of a page by its runs' folders, as seen from beside the first: no other comparison has it."""
    first = run_dir.resolve()
    parts = [Path(os.path.relpath(other.resolve(), first.parent)).parts for other in others]
    named = ["-".join("up" if part == ".." else part for part in one) for one in parts]
    name = "_".join(["comparison", first.name, *named])
    if len(name.encode()) > LONGEST_NAME:
        digest = hashlib.sha256("\n".join(named).encode()).hexdigest()[:8]
        name = f"comparison_{first.name[:40]}_and_{len(named)}_more_{digest}"
    return f"{name}.html"


def _shared(runs: Sequence[RunFiles]) -> dict[str, Any]:
    """Return what pages of one and of several runs show."""
    labels = run_labels(runs)
    colours = agent_colours(runs)
    training, constant = training_charts(runs, labels, colours)
    optimizer, constant_too = optimizer_charts(runs, labels, colours)
    # The rows of the comparison by set, grouped by run.
    results: dict[str, dict[str, dict[str, Any]]] = {}
    rows = comparison_rows(runs)
    graded = {row["set"] for row in rows if row["start"] is not None}
    for row in rows:
        if row["set"] in graded:
            results.setdefault(row["set"], {}).setdefault(row["run"], {**row, "rows": []})["rows"].append(row)
    return {
        "is_within_noise": is_within_noise,
        "runs": list(zip(labels, runs, strict=True)),
        "labels": labels,
        "colours": colours,
        "results": [(set_name, list(groups.values())) for set_name, groups in results.items()],
        **diagnosis.context(runs, labels),
        "notes": caveats(runs, labels),
        "validation": [(name, validation_charts(name, runs, labels, colours)) for name in runs[0].sets],
        "training": training,
        "optimizer": optimizer,
        "constant": [*constant, *constant_too],
        "tag_tables": _tag_tables(runs, labels),
    }


def _comparison(runs: Sequence[RunFiles], page_path: Path) -> dict[str, Any]:
    labels, paths = run_labels(runs), [run.path for run in runs]
    return {
        "title": f"{labels[1]} against {labels[0]}"
        if len(labels) == 2
        else f"{labels[0]} and {len(labels) - 1} others",
        "kind": "comparison of runs",
        "links": links.reports(paths, [f"report of {label}" for label in labels], page_path),
        "origin": [("folder", ", ".join(map(links.place, paths))), *links.origin(page_path.parent, written())[1:]],
        "differences": difference_tables(runs, labels),
        "differing": replace(settings_table(runs, labels), title=""),
    }


def _of_one(run: RunFiles, page_path: Path) -> dict[str, Any]:
    colours = agent_colours([run])
    answered = answered_prompts(run)
    with same_answers(run) as (same, same_means):
        gallery = gallery_entries(run, answered, colours, same)
    by_step = [(step, list(entries)) for step, entries in groupby(gallery, key=lambda entry: entry["step"])]
    agents = []
    for name in run.agents:
        known = mapping(dig(run.summary, "agents", name))
        facts = {"name": name, "model": known.get("model") or run.models.get(name), "family": known.get("family")}
        agents.append(facts | {"parameters": known.get("parameters"), "trainable": known.get("trainable_parameters")})
    return {
        "title": run.name,
        "kind": "run report",
        "links": links.of_run(run.path, page_path),
        "origin": links.origin(run.path, mapping(dig(run.summary, "made")) or read_made(run.path)),
        "run": run,
        "facts": _facts(run),
        "agents": agents,
        "gallery": by_step,
        "gallery_title": gallery_title(gallery),
        "gallery_shown": len(gallery),
        "same_means": same_means,
        "gallery_size": len(answered),
        "unanswered": len(run.gallery) - len(answered),
        "data_check": _data_check(run),
        "memory": memory_sentences(
            {
                name: {"memory": mapping(dig(agent, "memory"))}
                for name, agent in mapping(dig(run.summary, "agents")).items()
            }
        ),
    }


def _facts(run: RunFiles) -> list[tuple[str, str]]:
    """Return the facts of a run as (name, value), as far as its files say."""
    batch = mapping(run.config.get("batch"))
    planned = "" if run.steps_planned is None else f" of {run.steps_planned}"
    facts = [("steps", f"{run.steps_done}{planned}")]
    if batch.get("prompts") and batch.get("completions"):
        facts.append(("per step and agent", f"{batch['prompts']} prompts × {batch['completions']} completions"))
    if run.config.get("seed") is not None:
        facts.append(("seed", str(run.config["seed"])))
    if run.seconds is not None:
        facts.append(("time", page.duration(run.seconds)))
    memory = [value for record in run.timings if (value := number(record.get("peak_rss_gb"))) is not None]
    if memory:
        facts.append(("peak memory", f"{max(memory) * 1e9 / 2**30:.2f} GiB"))
    if grader := mapping(dig(run.summary, "grader")):
        facts.append(("grader", f"{grader.get('name', '?')} {grader.get('version', '?')}"))
    return facts


def _tag_tables(runs: Sequence[RunFiles], labels: Sequence[str]) -> list[dict[str, Any]]:
    tables = []
    for run, label in zip(runs, labels, strict=True):
        for set_name in run.sets:
            by_agent = {agent: run.by_tag(set_name, agent) for agent in run.agents}
            tags = sorted({tag for known in by_agent.values() for tag in known})
            rows = [(tag, [by_agent[a].get(tag, StartEnd(None, None)) for a in run.agents]) for tag in tags]
            if rows:
                facts = {"run": label, "supervision_label": run.supervision_label, "set_name": set_name}
                tables.append({**facts, "agents": run.agents, "rows": rows})
    return tables


def _data_check(run: RunFiles) -> list[dict[str, Any]]:
    splits = []
    for name, check in run.data_check.items():
        known = mapping(check)
        findings = [mapping(finding) for finding in known.get("findings") or ()]
        examples = [f"row {finding.get('row_id')}: {finding.get('reason')}" for finding in findings]
        splits.append(
            {
                "name": str(name),
                "rows": known.get("rows"),
                "kept": known.get("kept"),
                "skipped": {str(kind).replace("_", " "): n for kind, n in mapping(known.get("counts")).items()},
                # Such as `further_images`, of which the first is kept, and `original wording in view NAME`.
                "notes": {str(kind).replace("_", " "): n for kind, n in mapping(known.get("notes")).items()},
                "examples": examples[:MAX_EXAMPLES],
                "more_examples": max(0, len(examples) - MAX_EXAMPLES),
            }
        )
    return splits
