"""Asks a judge about many answers, and tells each verdict as it comes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from eval_suite.grading.judge.cache import VerdictCache
from eval_suite.grading.judge.prompt import JudgeRequest, key, prompt, read_reply
from eval_suite.grading.judge.settings import JudgeSettings
from mmcorl.errors import RunError
from mmcorl.llm_client import Breaker, Endpoint, Reply, Stop, Unanswered, to_the_end

JudgeVerdict = Literal["yes", "no", "unclear", "failed"]
"""`unclear`: it replied, off the menu. `failed`: no reply came, which says nothing about the answer."""
_Told = tuple[str, JudgeVerdict, str]
"""Content key, verdict, the judge's words."""
OnResult = Callable[[int, JudgeVerdict, str], None]
"""Number of the request, verdict, and the judge's words (for `failed`: why, in a sentence)."""

RAW_LIMIT = 500
"""Characters kept of a judge's reply."""
_BATCH = 256
"""Prompts given to an in-process judge at once: a kill loses at most these."""


class JudgeModel(Protocol):
    """A judge in this process."""

    @property
    def name(self) -> str:
        """Recorded beside its verdicts, and part of the cache key."""

    def ask(self, prompts: Sequence[str]) -> Sequence[Reply | Unanswered]:
        """One reply for each prompt, greedily decoded, each prompt a user message in its chat template.

        `Unanswered`, returned and not raised, stands for a reply that cannot be had.
        """


@dataclass
class Problem:
    """Failures of one kind."""

    sentence: str
    """The first of them."""
    questions: int = 0


@dataclass
class Counts:
    """Where a run of the judge stands; `done` reaches `total` even when the judge stops."""

    total: int
    yes: int = 0
    no: int = 0
    unclear: int = 0
    failed: int = 0
    cached: int = 0
    """Of these, answers whose verdict was known."""
    asked: int = 0
    """Different questions put to the judge; equal ones are merged."""
    sent: int = 0
    """HTTP requests, retries among them."""
    problems: dict[str, Problem] = field(default_factory=dict)
    """By kind."""
    stopped: str | None = None
    """Why the rest was not asked, in a sentence."""

    @property
    def done(self) -> int:
        """Answers told so far."""
        return self.yes + self.no + self.unclear + self.failed


def judge_all(
    requests: Sequence[JudgeRequest],
    judge: JudgeSettings | JudgeModel,
    on_result: OnResult | None = None,
    *,
    cache: VerdictCache | None = None,
    on_progress: Callable[[Counts], None] | None = None,
) -> Counts:
    """Judge every request; `on_result` hears each verdict as soon as it is in, so a kill loses nothing told.

    Equal requests are asked once. Known verdicts come from `cache`, and new ones are in it before they are told.
    Until the judge has answered once, questions go one at a time, and what would befall every question (nobody
    listens, the key is refused, the model is unknown) stops the run there; later `stop_after` failures in a row do.
    What was not asked is told as failed, and asked on the next run.

    May be called where an event loop runs already, such as in a notebook; it then works in a thread of its own.

    Raises:
        UserError: the judge's key is not set.
        RunError: the cache cannot be written. What `on_result` raises comes through, too.
    """
    run = _Run(requests, judge, on_result, cache, on_progress)
    run.tell_known()
    if not isinstance(judge, JudgeSettings):
        run.ask_model(judge)
    elif run.waiting:
        to_the_end(run.ask_endpoint(judge))
    return run.counts


def as_callable(
    judge: JudgeSettings | JudgeModel, cache: VerdictCache | None = None
) -> Callable[[str | None, Sequence[str] | None, str, str], bool | None]:
    """A judge of one answer at a time, for `grade(..., judge=)`: question, options, gold, answer to verdict.

    None for a reply off the menu. The callable raises `RunError` when no reply comes, and once an endpoint is known to
    be of no use (see `judge_all`) it does so at once. Many answers are judged much faster by `judge_all`.

    Raises:
        UserError: the judge's key is not set.
    """
    if isinstance(judge, JudgeSettings):
        judge.api_key()
    stopped: list[str] = []

    def ask(question: str | None, options: Sequence[str] | None, gold: str, answer: str) -> bool | None:
        if stopped:
            raise RunError(stopped[0])
        told: list[tuple[JudgeVerdict, str]] = []
        request = JudgeRequest(question or "", options, gold, answer)
        counts = judge_all([request], judge, lambda _, verdict, raw: told.append((verdict, raw)), cache=cache)
        if counts.stopped:
            stopped.append(counts.stopped)
        ((verdict, raw),) = told
        if verdict == "failed":
            raise RunError(raw)
        return {"yes": True, "no": False}.get(verdict)

    return ask


class _Run:
    """One call of `judge_all`."""

    def __init__(
        self,
        requests: Sequence[JudgeRequest],
        judge: JudgeSettings | JudgeModel,
        on_result: OnResult | None,
        cache: VerdictCache | None,
        on_progress: Callable[[Counts], None] | None,
    ) -> None:
        self.requests, self.on_result, self.cache, self.on_progress = requests, on_result, cache, on_progress
        self.counts = Counts(len(requests))
        self.waiting: dict[str, list[int]] = {}
        """By key, the numbers of the requests that share it; gone once told."""
        for number, request in enumerate(requests):
            self.waiting.setdefault(key(request, judge.name), []).append(number)

    def tell_known(self) -> None:
        """Tell what the cache knows."""
        known = self.cache.get(list(self.waiting)) if self.cache else {}
        for content, reply in known.items():
            self.counts.cached += len(self.waiting[content])
            self._tell((content, *_read(reply)))

    def ask_model(self, judge: JudgeModel) -> None:
        """Ask a judge in this process, in batches."""
        left = list(self.waiting)
        for start in range(0, len(left), _BATCH):
            keys = left[start : start + _BATCH]
            replies = judge.ask([prompt(self.requests[self.waiting[content][0]]) for content in keys])
            if len(replies) != len(keys):
                raise ValueError(f"judge {judge.name} gave {len(replies)} replies to {len(keys)} prompts")
            self.counts.asked += len(keys)
            told = [self._told(content, reply) for content, reply in zip(keys, replies, strict=True)]
            for result in self._keep(told):
                self._tell(result)

    async def ask_endpoint(self, settings: JudgeSettings) -> None:
        """Ask an endpoint, several questions at a time."""
        # Bounded, so that a slow disk slows the asking, and a kill loses few replies that were not kept yet.
        told: asyncio.Queue[_Told | None] = asyncio.Queue(settings.concurrency)
        breaker = Breaker(settings.stop_after)
        async with Endpoint(settings) as endpoint, asyncio.TaskGroup() as group:
            group.create_task(self._teller(told))
            left = iter(list(self.waiting))
            try:
                while not breaker.answered and (content := next(left, None)):
                    await self._ask(endpoint, breaker, content, told)
                async with asyncio.TaskGroup() as lanes:
                    for _ in range(settings.concurrency):
                        lanes.create_task(self._lane(endpoint, breaker, left, told))
            except* Stop:
                self.counts.stopped = breaker.stopped  # What was under way is cancelled and counts as not asked.
            await told.put(None)
        for content in list(self.waiting):
            self._tell((content, "failed", f"not asked, or not to the end: {self.counts.stopped}"))

    async def _lane(
        self, endpoint: Endpoint, breaker: Breaker, left: Iterator[str], told: asyncio.Queue[_Told | None]
    ) -> None:
        for content in left:
            await self._ask(endpoint, breaker, content, told)

    async def _ask(self, endpoint: Endpoint, breaker: Breaker, content: str, told: asyncio.Queue[_Told | None]) -> None:
        counts = self.counts
        counts.asked += 1
        try:
            reply = await endpoint.ask(prompt(self.requests[self.waiting[content][0]]))
        except Unanswered as trouble:
            await told.put(self._told(content, trouble))
            breaker.failure(trouble)
        else:
            breaker.success()
            await told.put(self._told(content, reply))
        finally:
            counts.sent = endpoint.sent

    async def _teller(self, told: asyncio.Queue[_Told | None]) -> None:
        """Keep and tell results, as many as are in at once: to commit many costs no more than to commit one."""
        more = True
        while more:
            results = [await told.get()]
            while not told.empty():
                results.append(told.get_nowait())
            more = None not in results
            fresh = [result for result in results if result is not None]
            fresh = await asyncio.to_thread(self._keep, fresh)
            for result in fresh:
                self._tell(result)

    def _told(self, content: str, reply: Reply | Unanswered) -> _Told:
        """What is told of one question; counts its failure."""
        if isinstance(reply, Unanswered):
            sentence = str(reply)
            self.counts.problems.setdefault(reply.kind, Problem(sentence)).questions += 1
            return content, "failed", sentence
        return content, *_read(reply.text, cut_off=reply.cut_off)

    def _keep(self, results: list[_Told]) -> list[_Told]:
        """Put verdicts into the cache; returns the results, with the verdicts that hold there."""
        replies = {content: raw for content, verdict, raw in results if verdict in ("yes", "no")}
        held = self.cache.put(replies) if self.cache and replies else {}
        return [
            (content, *_read(held[content])) if content in held else (content, verdict, raw)
            for content, verdict, raw in results
        ]

    def _tell(self, result: _Told) -> None:
        """Tell one result to every request that shares it."""
        content, verdict, raw = result
        for number in self.waiting.pop(content):
            setattr(self.counts, verdict, getattr(self.counts, verdict) + 1)
            if self.on_result:
                self.on_result(number, verdict, raw)
            if self.on_progress:
                self.on_progress(self.counts)


def _read(reply: str, *, cut_off: bool = False) -> tuple[JudgeVerdict, str]:
    """Verdict, and the reply as it is recorded."""
    reply = reply.encode("utf-8", "replace").decode("utf-8")  # JSON can carry half a character, files cannot.
    correct = None if cut_off else read_reply(reply)
    if correct is None:
        return "unclear", reply[:RAW_LIMIT]
    return ("yes" if correct else "no"), reply.strip()
