"""Verdicts that need not be asked for again."""

from __future__ import annotations

from typing import ClassVar

from mmcorl.llm_client import ReplyCache


class VerdictCache(ReplyCache):
    """What a judge replied, by content key (see `prompt.key`); use it as a context manager.

    Only replies that are verdicts belong here. A failure says nothing about the answer, and a reply off the menu
    mostly comes from a judge that is set up wrongly: both are asked again, so that mending the judge mends the scores.
    """

    NAME: ClassVar[str] = "verdict cache"
    TABLE: ClassVar[str] = "verdicts"
    SCHEMA: ClassVar[int] = 1
