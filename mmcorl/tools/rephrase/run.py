"""Rewords a whole data set into a file that `data.train.views` reads.

Resuming needs no bookkeeping: every reply is on disk before it is used, so the same command walks through the rows
again, asks only for what is not there, and writes one row for each row of the data, all at once, at the end.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from mmcorl import __version__
from mmcorl.answers import RELATION, Equivalence
from mmcorl.data import DataCheck, PromptSource, check
from mmcorl.data.integrity import ORIGINAL, REASON, SEAL, seal
from mmcorl.errors import RunError, UserError
from mmcorl.llm_client import Endpoint, ReplyCache, Stop, to_the_end
from mmcorl.run.folder import atomic_write
from mmcorl.run.progress import Task, task
from mmcorl.tools.rephrase.asking import Asker
from mmcorl.tools.rephrase.prompts import PROMPT_VERSION
from mmcorl.tools.rephrase.row import UNANSWERED, Outcome, Rewording
from mmcorl.tools.rephrase.settings import RephraseSettings

REPLIES, FAILURES, REPORT = "replies.sqlite", "failures.jsonl", "report.json"
"""In the folder beside the view."""


@dataclass(frozen=True)
class Report:
    """What a run did; also in report.json."""

    view: Path
    rows: int
    """Rows of the view: the usable rows of the data, in their order."""
    reworded: int
    failed: Mapping[str, int]
    """Rows without a good rewording, by reason."""
    skipped: Mapping[str, int]
    """Rows of the data that cannot be used, by reason; the view has none of them."""
    asked: int
    """Different requests of this run."""
    known: int
    """Replies that were known before they were asked for."""
    sent: int
    """HTTP requests of this run, retries among them."""
    seconds: float
    sha256: str
    """Of the view."""

    @property
    def unanswered(self) -> int:
        """Rows for which no reply came, and which the same command asks again."""
        return self.failed.get(UNANSWERED, 0)


def work_folder(out: Path) -> Path:
    """Where replies, failures and the report of a view lie."""
    return out.with_name(out.name + ".work")


def rephrase(source: PromptSource, settings: RephraseSettings, out: Path, *, quiet: bool = False) -> Report:
    """Reword every usable row of `source` into `out` (JSON Lines), or go on where an earlier call stopped.

    Each row has id, question, answer, and what ties it to its original (`mmcorl.data.integrity`). A row without a good
    rewording has its own wording, or none (`settings.failed`); failures.jsonl in `out`.work says why.

    Raises:
        UserError: `out` is a file of another tool, a key is not set, or the data are refused.
        RunError: a model does not answer any more, or the disk does not take the replies. What came is kept, and
            `out` is as it was.
    """
    _may_write(out)
    for endpoint in (settings.rewriter, settings.checker):
        endpoint.api_key()
    started = time.monotonic()
    with task("reading rows", len(source), quiet=quiet) as bar:
        usable = check(source, max_side=settings.max_side, on_progress=lambda *_: bar.advance())
    work = work_folder(out)
    with ReplyCache(work / REPLIES) as cache, Equivalence() as relation:
        run = _Run(source.select(usable.kept), settings, cache, relation)
        with task("rewording", len(usable.kept), quiet=quiet) as bar:
            outcomes = to_the_end(run.all(bar))
    rows = list(_rows(outcomes, settings))
    view = _lines(rows)
    report = Report(
        view=out,
        rows=len(outcomes),
        reworded=sum(outcome.question is not None for outcome in outcomes),
        failed=dict(Counter(outcome.reason for outcome in outcomes if outcome.reason).most_common()),
        skipped=usable.counts,
        asked=run.asked,
        known=run.known,
        sent=run.sent,
        seconds=round(time.monotonic() - started, 1),
        sha256=hashlib.sha256(view).hexdigest(),
    )
    _write(work / FAILURES, _lines([_failure(outcome) for outcome in outcomes if outcome.question is None]))
    _write(work / REPORT, json.dumps(_record(report, settings, source, usable), indent=1).encode() + b"\n")
    _write(out, view)
    return report


class _Run:
    """Rows under way, several at a time."""

    def __init__(
        self, rows: PromptSource, settings: RephraseSettings, cache: ReplyCache, relation: Equivalence
    ) -> None:
        self.asked = self.known = self.sent = 0
        self._rows, self._settings, self._cache, self._relation = rows, settings, cache, relation
        self._outcomes: dict[int, Outcome] = {}
        self._failed = 0

    async def all(self, bar: Task) -> list[Outcome]:
        """The outcome of every row, in the order of the rows. Raises RunError where no model answers any more."""
        settings = self._settings
        async with Endpoint(settings.rewriter) as rewriter, Endpoint(settings.checker) as checker:
            askers = Asker(rewriter, self._cache), Asker(checker, self._cache)
            rewording = Rewording(settings, *askers, self._relation)
            left = iter(range(len(self._rows)))
            try:
                # One at a time until the rewriter has answered once: a wrong address should fail one row, not many.
                while not askers[0].breaker.answered and (row := next(left, None)) is not None:
                    await self._one(rewording, row, bar)
                async with asyncio.TaskGroup() as lanes:
                    for _ in range(settings.rewriter.concurrency):
                        lanes.create_task(self._lane(rewording, left, bar))
            except* Stop:
                pass  # Said below; rows under way are given up, not what was replied about them.
            finally:
                for asker in askers:
                    await asker.settle()
            if why := askers[0].breaker.stopped or askers[1].breaker.stopped:
                raise RunError(
                    f"{why} {len(self._outcomes)} of {len(self._rows)} rows are done, and every reply so far is kept: "
                    "the same command goes on from there"
                )
            self.asked, self.known = sum(one.asked for one in askers), sum(one.known for one in askers)
            self.sent = rewriter.sent + checker.sent
        return [self._outcomes[row] for row in range(len(self._rows))]

    async def _lane(self, rewording: Rewording, left: Iterator[int], bar: Task) -> None:
        for row in left:
            await self._one(rewording, row, bar)

    async def _one(self, rewording: Rewording, row: int, bar: Task) -> None:
        outcome = self._outcomes[row] = await rewording.of(self._rows[row])
        self._failed += outcome.question is None
        bar.advance()
        bar.update(f"{self._failed} without a good rewording" if self._failed else "")


def _rows(outcomes: Sequence[Outcome], settings: RephraseSettings) -> Iterator[dict[str, Any]]:
    for outcome in outcomes:
        question = outcome.question
        if question is None and settings.failed == "original":
            question = outcome.original
        yield {
            "id": outcome.row_id,
            "question": question,
            "answer": outcome.gold,
            ORIGINAL: outcome.uid,
            SEAL: seal(outcome.row_id, outcome.uid, question or ""),
            REASON: outcome.reason,
        }


def _failure(outcome: Outcome) -> dict[str, Any]:
    return {
        "id": outcome.row_id,
        ORIGINAL: outcome.uid,
        REASON: outcome.reason,
        "original": outcome.original,
        "attempts": [asdict(attempt) for attempt in outcome.failures],
    }


def _record(report: Report, settings: RephraseSettings, source: PromptSource, usable: DataCheck) -> Mapping[str, Any]:
    data = source.settings.model_dump(mode="json", exclude_defaults=True)
    return {
        "tool": f"mmcorl {__version__}",
        "prompt_version": PROMPT_VERSION,
        "answers": " ".join(RELATION),
        "settings": settings.to_json(),
        "data": {"settings": data, "fingerprint": usable.fingerprint},
        **asdict(report),
        "view": report.view.name,
    }


def _lines(rows: Sequence[Mapping[str, Any]]) -> bytes:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()


def _may_write(out: Path) -> None:
    if out.suffix != ".jsonl":
        raise UserError(
            f"the view is written as JSON Lines, but {str(out)!r} does not end in .jsonl; name one that does"
        )
    if out.exists() and not work_folder(out).is_dir():
        raise UserError(
            f"{str(out)!r} exists and was not written by this command ({work_folder(out).name} is not beside it); move "
            "it away, or write to another file"
        )


def _write(path: Path, content: bytes) -> None:
    """Replace a file at once; raises RunError."""
    try:
        atomic_write(path, content)
    except OSError as error:
        raise RunError(
            f"{str(path)!r} cannot be written ({error.strerror}); every reply is kept: mend that, and run the same "
            "command again"
        ) from error
