"""Rewords the questions of a data set through a model, so that agents can read different wordings. No torch in here."""

from mmcorl.tools.rephrase.row import Attempt, Outcome
from mmcorl.tools.rephrase.rules import RULES, Breach, breach
from mmcorl.tools.rephrase.run import Report, rephrase, work_folder
from mmcorl.tools.rephrase.settings import CheckerSettings, RephraseSettings, RewriterSettings

__all__ = [
    "RULES",
    "Attempt",
    "Breach",
    "CheckerSettings",
    "Outcome",
    "RephraseSettings",
    "Report",
    "RewriterSettings",
    "breach",
    "rephrase",
    "work_folder",
]
