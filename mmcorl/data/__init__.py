"""Prompts: where they come from, how they are checked, in which order they are drawn. No torch in here."""

from mmcorl.data.batches import Batches
from mmcorl.data.checks import DataCheck, DataError, Finding, check
from mmcorl.data.columns import Columns
from mmcorl.data.settings import DataSettings, HoldOut, View, ViewColumns
from mmcorl.data.sources import PromptSource, load_prompts

__all__ = [
    "Batches",
    "Columns",
    "DataCheck",
    "DataError",
    "DataSettings",
    "Finding",
    "HoldOut",
    "PromptSource",
    "View",
    "ViewColumns",
    "check",
    "load_prompts",
]
