"""How questions are reworded, and what a rewording must pass."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, get_args

from mmcorl.errors import UserError
from mmcorl.llm_client import EndpointSettings
from mmcorl.tools.rephrase.rules import RULES

Check = Literal["compare", "solve", "rules"]
Against = Literal["known", "votes"]
OnFailure = Literal["original", "mark"]


@dataclass(frozen=True)
class RewriterSettings(EndpointSettings):
    """An endpoint that serves the model that rewords."""

    ROLE: ClassVar[str] = "rewriter"
    KEY_OPTION: ClassVar[str] = "--key-env, or api_key_env in Python"

    timeout: float = 300.0
    """Seconds one request may take as a whole; a model that thinks takes its time."""
    max_tokens: int = 4096
    """Room for a rewording, or for thoughts and a rewording."""


@dataclass(frozen=True)
class CheckerSettings(RewriterSettings):
    """An endpoint that serves the model that solves or compares."""

    ROLE: ClassVar[str] = "checker"
    KEY_OPTION: ClassVar[str] = "--check-key-env, or api_key_env in Python"


@dataclass(frozen=True)
class RephraseSettings:
    """Everything that decides what a view holds; two runs with equal settings and replies write equal files.

    Raises:
        UserError: a setting that cannot work.
    """

    rewriter: RewriterSettings
    checker: CheckerSettings
    """Who solves or compares; often the same model."""
    temperature: float = 0.7
    """Of the rewording and, where there are several, of the solutions (Co-rewarding-I: 0.7)."""
    top_p: float = 0.8
    """Of the rewording and the solutions (Co-rewarding-I: 0.8)."""
    seed: int = 0
    """Sent with every sampled request; further attempts and solutions count on from it."""
    attempts: int = 3
    """Rewordings tried for a row, one after another, until one passes."""
    check: Check = "compare"
    """`compare`: a model says whether both wordings have the same answer. `solve`: a model solves the rewording, see
    `against`. `rules`: only the rules."""
    solves: int = 3
    """With `solve`: times a question is solved."""
    agree: int = 2
    """With `solve`: solutions of the rewording that must have the right answer."""
    against: Against = "known"
    """With `solve`, what is the right answer. `known`: the row's own where it has one, else as `votes`. `votes`: what
    at least `agree` of `solves` solutions of the original say, whatever the row says, so that no label is used."""
    failed: OnFailure = "original"
    """What a row gets that has no good rewording. `original`: its own wording. `mark`: none, so that training on the
    view refuses or skips it (`on_bad_row`)."""
    without: frozenset[str] = frozenset()
    """Rules that are not asked."""
    show_images: bool = False
    """Send pictures with requests to reword and compare; requests to solve always have them."""
    max_side: int = 1024
    """Longest side of a picture as it is sent, in pixels."""
    _least: ClassVar[Mapping[str, int]] = {"seed": 0, "attempts": 1, "solves": 1, "agree": 1}

    def __post_init__(self) -> None:
        for name, least in self._least.items():
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise UserError(f"{name} {value!r} is not a whole number of at least {least}")
        if not (math.isfinite(self.temperature) and self.temperature >= 0):
            raise UserError(f"temperature {self.temperature!r} is not at least 0")
        if not 0 < self.top_p <= 1:
            raise UserError(f"top_p {self.top_p!r} is not above 0 and at most 1")
        if self.agree > self.solves:
            raise UserError(f"agree {self.agree} of {self.solves} solutions can never agree; lower it or raise solves")
        for name, value, known in (
            ("check", self.check, get_args(Check)),
            ("against", self.against, get_args(Against)),
            ("failed", self.failed, get_args(OnFailure)),
        ):
            if value not in known:
                raise UserError(f"{name} {value!r} is none of {', '.join(known)}")
        if unknown := sorted(self.without - RULES.keys()):
            raise UserError(f"there is no rule {unknown[0]!r}; the rules are {', '.join(RULES)}")

    def sampling(self, number: int) -> dict[str, Any]:
        """Fields of the `number`-th sampled request about one thing."""
        return {"temperature": self.temperature, "top_p": self.top_p, "seed": self.seed + number}

    def to_json(self) -> dict[str, Any]:
        """What is recorded of them."""
        own = {name: getattr(self, name) for name in ("temperature", "top_p", "seed", "attempts", "check", "failed")}
        if self.check == "solve":
            own |= {name: getattr(self, name) for name in ("solves", "agree", "against")}
        models = {"rewriter": self.rewriter.name} | ({"checker": self.checker.name} if self.check != "rules" else {})
        return models | own | {"without": sorted(self.without), "show_images": self.show_images}
