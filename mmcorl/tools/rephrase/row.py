"""One row: reworded, held against the rules, checked by a model, tried again."""

from __future__ import annotations

import asyncio
import base64
import io
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from mmcorl.answers import Equivalence
from mmcorl.data import row_parsing
from mmcorl.llm_client import Content, Unanswered
from mmcorl.tools.rephrase import prompts
from mmcorl.tools.rephrase.asking import Asker
from mmcorl.tools.rephrase.rules import Breach, breach, split_options
from mmcorl.tools.rephrase.settings import RephraseSettings
from mmcorl.types import Prompt

UNANSWERED = "unanswered"
"""Reason of a row for which no reply came; the next run asks again."""


@dataclass(frozen=True)
class Attempt:
    """One rewording that was not good enough."""

    reason: str
    """In a word: a rule, `no_rewording`, `other_answer`, `undecided`, `unanswered`."""
    detail: str
    question: str | None = None


@dataclass(frozen=True)
class Outcome:
    """What became of one row."""

    row_id: str
    uid: str
    gold: str | None
    original: str
    """The question without the options of its own column."""
    question: str | None
    """The rewording; None where every attempt failed."""
    failures: tuple[Attempt, ...]
    """Attempts before it, or all of them."""

    @property
    def reason(self) -> str | None:
        """Why there is no rewording: that of the last attempt."""
        return self.failures[-1].reason if self.question is None else None


class Rewording:
    """Works on rows under one set of settings; safe to use from many tasks at once."""

    def __init__(self, settings: RephraseSettings, rewriter: Asker, checker: Asker, relation: Equivalence) -> None:
        self.settings, self.rewriter, self.checker, self.relation = settings, rewriter, checker, relation

    async def of(self, prompt: Prompt) -> Outcome:
        """Reword one row. Raises Stop where no model answers any more."""
        original = row_parsing.without_choices(prompt.text, prompt.choices)
        failures: list[Attempt] = []
        found: str | None = None
        for number in range(self.settings.attempts):
            tried = await self._attempt(prompt, original, number)
            if isinstance(tried, str):
                found = tried
                break
            failures.append(tried)
            if tried.reason in (UNANSWERED, "undecided"):
                break  # Another rewording would meet the same.
        return Outcome(prompt.row_id, prompt.uid, prompt.gold, original, found, tuple(failures))

    async def _attempt(self, prompt: Prompt, original: str, number: int) -> str | Attempt:
        settings = self.settings
        stem, options = split_options(original)
        shown = options + prompt.text[len(original) :]
        unseen = bool(prompt.images) and not settings.show_images
        text = prompts.rewrite_prompt(stem, shown, unseen)
        reworded: str | None = None
        try:
            said, why = await self.rewriter.rewrite(
                await self._content(prompt, text, settings.show_images), settings.sampling(number)
            )
            if said is None:
                return Attempt("no_rewording", why)
            broken = breach(stem, said, settings.without)
            # The options that end the question never went through the model.
            reworded = said + options
            broken = broken or breach(original, reworded, settings.without)
            if broken is None:
                broken = await self._checked(prompt, original, reworded, unseen)
        except Unanswered as trouble:
            return Attempt(UNANSWERED, str(trouble), reworded)
        return reworded if broken is None else Attempt(broken.rule, broken.detail, reworded)

    async def _checked(self, prompt: Prompt, original: str, reworded: str, unseen: bool) -> Breach | None:
        """What a model holds against a rewording; None where nothing."""
        other = replace(prompt, text=reworded + prompt.text[len(original) :])
        if self.settings.check == "rules":
            return None
        if self.settings.check == "solve":
            return await self._solved(prompt, other)
        text = prompts.compare_prompt(prompt.text, other.text, unseen)
        same = await self.checker.compare(await self._content(prompt, text, self.settings.show_images))
        if same is None:
            return Breach("unclear", "the checker said neither same nor different")
        return None if same else Breach("other_answer", "the checker says that the two ask for different things")

    async def _solved(self, prompt: Prompt, other: Prompt) -> Breach | None:
        settings = self.settings
        right = prompt.gold if settings.against == "known" else None
        if right is None:
            right, votes = await self._voted(prompt)
            if right is None:
                return Breach("undecided", f"solutions of the original do not agree: {_told(votes)}")
        answers: list[str | None] = []
        agreed = 0
        for number in range(settings.solves):
            answers.append(await self._answer(other, number))
            agreed += await asyncio.to_thread(self.relation.same, answers[-1], right, prompt.choices)
            if agreed >= settings.agree:
                return None
            if agreed + settings.solves - len(answers) < settings.agree:
                break
        return Breach("other_answer", f"the rewording is answered {_told(answers)}, not {right[:60]!r}")

    async def _voted(self, prompt: Prompt) -> tuple[str | None, list[str | None]]:
        """What at least `agree` solutions of the original say, and all of them."""
        answers = [await self._answer(prompt, number) for number in range(self.settings.solves)]
        classes = await asyncio.to_thread(self.relation.classes, answers, prompt.choices)
        counted = Counter(one for one in classes if one is not None).most_common(1)
        if not counted or counted[0][1] < self.settings.agree:
            return None, answers
        return answers[classes.index(counted[0][0])], answers

    async def _answer(self, prompt: Prompt, number: int) -> str | None:
        content = await self._content(prompt, prompts.solve_prompt(prompt.text), True)
        return await self.checker.solve(content, self.settings.sampling(number))

    async def _content(self, prompt: Prompt, text: str, with_images: bool) -> Content:
        if not (prompt.images and with_images):
            return text
        images = await asyncio.to_thread(_encoded, prompt.images, self.settings.max_side)
        return [*images, {"type": "text", "text": text}]


def _encoded(images: Sequence[bytes], max_side: int) -> list[dict[str, object]]:
    """Pictures as parts of a message: PNG, turned, cut down and flattened as the agents will see them."""
    from model_adapters.images import load_image

    parts: list[dict[str, object]] = []
    for image in images:
        file = io.BytesIO()
        load_image(image, max_side).save(file, "PNG")
        address = "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()
        parts.append({"type": "image_url", "image_url": {"url": address}})
    return parts


def _told(answers: Sequence[str | None]) -> str:
    return ", ".join("nothing" if answer is None else repr(answer[:60]) for answer in answers)
