"""Options of `mmcorl.apps.report.dynamics.dynamics`, from which the command line makes its arguments."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict


class DynamicsOptions(BaseModel):
    """What to draw: the theory alone, or runs over the theory."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    completions: int | None = None
    """K: completions per prompt (default: the run's, or 8)"""
    votes: int | None = None
    """M: answers that vote, the first K of which train (default: K)"""
    start: tuple[str, ...] = ()
    """accuracies of two agents to start from"""
    rates: str | None = None
    """how fast each agent learns (default: 1,1)"""
    points: Path | None = None
    """FILE: CSV of prompts: p_A,p_B and optionally a weight"""
    runs: tuple[Path, ...] = ()
    """runs whose training data have known answers"""
    by: Literal["tag", "prompt", "all"] | None = None
    """how a run's prompts are grouped (default: by tag if the data have tags)"""
    windows: int = 8
    """N: windows of steps along a run (default: 8)"""
    out: Path | None = None
    """DIR: folder of dynamics.svg and dynamics.html (default: the first run's, or dynamics/)"""
