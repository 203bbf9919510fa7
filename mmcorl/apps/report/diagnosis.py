"""The diagnosis of runs, for pages, terminals and notebooks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mmcorl.apps.report.compare import start_and_end
from mmcorl.apps.report.page import render
from mmcorl.apps.report.unlabelled import is_blind, training_table
from mmcorl.run.diagnosis import Finding, diagnose_run
from mmcorl.run.reader import RunFiles
from mmcorl.system.links import SITE

TROUBLESHOOTING = SITE + "troubleshooting/"
NOTHING = "nothing found, which does not prove that the agents learn what is right."


def sections(runs: Sequence[RunFiles], labels: Sequence[str]) -> list[tuple[str, list[Finding]]]:
    """Return the findings of each run that has begun to train, by its label."""
    return [(label, diagnose_run(run)) for run, label in zip(runs, labels, strict=True) if run.metrics]


def context(runs: Sequence[RunFiles], labels: Sequence[str]) -> dict[str, Any]:
    """Return what diagnosis.html and the first section of a run's page take."""
    blind = [number for number, run in enumerate(runs) if is_blind(run)]
    table = training_table([runs[number] for number in blind], [labels[number] for number in blind]) if blind else None
    return {
        "diagnosis": sections(runs, labels),
        "diagnosis_told": told,
        "troubleshooting": TROUBLESHOOTING,
        "without_answers": table,
    }


def told(finding: Finding) -> str:
    """A finding in one line, with the step from which it was so."""
    return f"{finding.sentence} (first seen at step {finding.step}). {finding.advice[:1].upper()}{finding.advice[1:]}."


def lines(runs: Sequence[RunFiles], labels: Sequence[str]) -> list[str]:
    """Return the diagnosis of each run for a terminal."""
    shown, found = [], False
    for label, findings in sections(runs, labels):
        name = "Diagnosis" if len(runs) == 1 else f"Diagnosis of {label}"
        shown += [f"{name}: {finding.kind}: {told(finding)}" for finding in findings] or [f"{name}: {NOTHING}"]
        found = found or bool(findings)
    return [*shown, f"What these are, and what to do: {TROUBLESHOOTING}"] if found else shown


def in_notebook(run: RunFiles) -> str:
    """Return diagnosis and ends of a run as HTML for a notebook."""
    state = "finished" if run.finished else f"step {run.steps_done} of {run.steps_planned or '?'}"
    names = [run.name]
    shown = start_and_end([run], names)
    return render("in_notebook.html", name=run.name, state=state, lines=lines([run], names), tables=shown)
