"""Reword the questions of a data set with a model, so that agents can read different wordings. Imports no torch."""

from mmcorl.tools.rephrase.options import CheckerSettings, RephraseOptions, RewriterSettings
from mmcorl.tools.rephrase.rewording import Attempt, RowResult
from mmcorl.tools.rephrase.rules import RULES, Breach, breach
from mmcorl.tools.rephrase.run import (
    RephraseReport,
    rephrase,
    rephrase_config,
    training_overrides,
    view_of,
    work_folder,
)

__all__ = [
    "RULES",
    "Attempt",
    "Breach",
    "CheckerSettings",
    "RephraseOptions",
    "RephraseReport",
    "RewriterSettings",
    "RowResult",
    "breach",
    "rephrase",
    "rephrase_config",
    "training_overrides",
    "view_of",
    "work_folder",
]
