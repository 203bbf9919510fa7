"""Reword rows: ask for a rewording, apply the rules, have a model check the answer, and try again.

All rows go through each of these steps together, one `map_prompts` per step. Resuming needs no bookkeeping: every
reply is on disk before it is used, so the same call asks only for what is missing.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal

from mmcorl.answers import RELATION, Equivalence
from mmcorl.data import row_parsing
from mmcorl.errors import RunError
from mmcorl.llm_client import GREEDY, Content, Outcome, Reply, ReplyCache, map_prompts
from mmcorl.llm_client import Prompt as Request
from mmcorl.run.progress import task
from mmcorl.tools.rephrase import prompts
from mmcorl.tools.rephrase.options import RephraseOptions
from mmcorl.tools.rephrase.rules import Breach, breach, split_options
from mmcorl.types import Prompt

UNANSWERED = "unanswered"
"""Reason of a row for which no reply came; the next run asks again."""
Kind = Literal["rewrite", "compare", "solve"]
_READ: Mapping[Kind, Callable[[Reply], Any]] = {
    "rewrite": prompts.read_rewrite,
    "compare": prompts.read_comparison,
    "solve": prompts.read_solution,
}
_DOING: Mapping[Kind, str] = {"rewrite": "rewording", "compare": "comparing", "solve": "solving"}


class Rewording:
    """Rewords the rows of a data set under one set of options."""

    def __init__(
        self,
        rows: Sequence[Prompt],
        options: RephraseOptions,
        cache: ReplyCache,
        relation: Equivalence,
        *,
        max_side: int,
        quiet: bool,
    ) -> None:
        self.rows, self.options, self.cache, self.relation = rows, options, cache, relation
        self.max_side, self.quiet = max_side, quiet
        self.asked = 0
        """Different requests put to a model in this run."""
        self.known = 0
        """Requests whose reply was known."""
        self.sent = 0
        """HTTP requests, including retries."""
        self._rewriter, self._checker = options.rewriter(), options.checker()
        self.original = [row_parsing.without_choices(row.text, row.choices) for row in rows]
        """Questions without the options of their own column, by row."""
        self.question: list[str | None] = [None] * len(rows)
        """Rewordings by row; None where every attempt failed."""
        self.failures: list[list[Breach]] = [[] for _ in rows]
        """What was wrong with the attempts before the rewording, or with all of them, by row."""
        self._finished = 0

    def run(self) -> None:
        """Reword every row. Raises RunError where a model answers no more."""
        pending = list(range(len(self.rows)))
        for number in range(self.options.attempts):
            pending = self._attempt(pending, number)
            self._finished = len(self.rows) - len(pending)

    def _attempt(self, pending: Sequence[int], number: int) -> list[int]:
        """Try the `number`-th rewording of each pending row; returns the rows worth another attempt."""
        options = self.options
        requests = {}
        for row in pending:
            prompt, original = self.rows[row], self.original[row]
            stem, tail = split_options(original)
            unseen = bool(prompt.images) and not options.show_images
            text = prompts.rewrite_prompt(stem, tail + prompt.text[len(original) :], unseen)
            requests[row] = prompt, text, options.show_images
        candidates: dict[int, str] = {}
        failures: dict[int, Breach] = {}
        for row, reply in self._ask("rewrite", requests, options.sampling(number)).items():
            if isinstance(reply, Breach):
                failures[row] = reply
                continue
            text, why = reply
            if text is None:
                failures[row] = Breach("no_rewording", why)
                continue
            stem, tail = split_options(self.original[row])
            skipped = frozenset(options.skip_rule)
            broken = breach(stem, text, skipped)
            # The options that end the question never went through the model.
            text += tail
            broken = broken or breach(self.original[row], text, skipped)
            if broken is None:
                candidates[row] = text
            else:
                failures[row] = replace(broken, question=text)
        verdicts: Mapping[int, Breach | None] = dict.fromkeys(candidates)
        if options.check != "rules":
            verdicts = self._compare(candidates) if options.check == "compare" else self._solve(candidates)
        for row, trouble in verdicts.items():
            if trouble is None:
                self.question[row] = candidates[row]
            else:
                failures[row] = replace(trouble, question=candidates[row])
        for row, failure in failures.items():
            self.failures[row].append(failure)
        # Another rewording would meet the same fate where nobody answers or the original is undecided.
        return sorted(row for row, failure in failures.items() if failure.reason not in (UNANSWERED, "undecided"))

    def _compare(self, candidates: Mapping[int, str]) -> dict[int, Breach | None]:
        requests = {}
        for row, text in candidates.items():
            prompt, shown = self.rows[row], self.options.show_images
            other = text + prompt.text[len(self.original[row]) :]
            unseen = bool(prompt.images) and not shown
            requests[row] = prompt, prompts.compare_prompt(prompt.text, other, unseen), shown
        said = {
            None: Breach("unclear", "the checker said neither same nor different"),
            False: Breach("other_answer", "the checker says that the two ask for different things"),
            True: None,
        }
        replies = self._ask("compare", requests, GREEDY).items()
        return {row: same if isinstance(same, Breach) else said[same] for row, same in replies}

    def _solve(self, candidates: Mapping[int, str]) -> dict[int, Breach | None]:
        options = self.options
        verdicts: dict[int, Breach | None] = {}
        known = candidates if options.against == "known" else ()
        right = {row: gold for row in known if (gold := self.rows[row].gold) is not None}
        right |= self._vote([row for row in candidates if row not in right], verdicts)
        answers: dict[int, list[str | None]] = {row: [] for row in right}
        agreed: Counter[int] = Counter()
        for number in range(options.solves):
            reworded = {
                row: replace(self.rows[row], text=candidates[row] + self.rows[row].text[len(self.original[row]) :])
                for row in right
                if row not in verdicts
            }
            for row, answer in self._answers(reworded, number).items():
                if isinstance(answer, Breach):
                    verdicts[row] = answer
                    continue
                answers[row].append(answer)
                agreed[row] += self.relation.same(answer, right[row], self.rows[row].choices)
                if agreed[row] >= options.agree:
                    verdicts[row] = None
                elif agreed[row] + options.solves - len(answers[row]) < options.agree:
                    detail = f"the rewording is answered {_listed(answers[row])}, not {right[row][:60]!r}"
                    verdicts[row] = Breach("other_answer", detail)
        return verdicts

    def _vote(self, rows: Sequence[int], verdicts: dict[int, Breach | None]) -> dict[int, str]:
        """Return what at least `agree` solutions of the original say; notes in `verdicts` the rows without."""
        votes: dict[int, list[str | None]] = {row: [] for row in rows}
        for number in range(self.options.solves):
            originals = {row: self.rows[row] for row in rows if row not in verdicts}
            for row, answer in self._answers(originals, number).items():
                if isinstance(answer, Breach):
                    verdicts[row] = answer
                else:
                    votes[row].append(answer)
        winners: dict[int, str] = {}
        for row in [row for row in rows if row not in verdicts]:
            classes = self.relation.classes(votes[row], self.rows[row].choices)
            counted = Counter(label for label in classes if label is not None).most_common(1)
            if counted and counted[0][1] >= self.options.agree:
                winner = votes[row][classes.index(counted[0][0])]
                assert winner is not None
                winners[row] = winner
            else:
                verdicts[row] = Breach("undecided", f"solutions of the original do not agree: {_listed(votes[row])}")
        return winners

    def _answers(self, questions: Mapping[int, Prompt], number: int) -> dict[int, Any]:
        requests = {row: (prompt, prompts.solve_prompt(prompt.text), True) for row, prompt in questions.items()}
        return self._ask("solve", requests, self.options.sampling(number))

    def _ask(
        self, kind: Kind, requests: Mapping[int, tuple[Prompt, str, bool]], sampling: Mapping[str, Any]
    ) -> dict[int, Any]:
        """Ask about rows (row, text, whether to send its images); returns what was read of each reply, or a Breach."""
        endpoint = self._rewriter if kind == "rewrite" else self._checker
        rows = list(requests)
        replies: dict[int, Any] = {}
        with task(_DOING[kind], len(rows), quiet=self.quiet or not rows) as bar:

            def take(index: int, outcome: Outcome) -> None:
                failed = not isinstance(outcome, str)
                replies[rows[index]] = Breach(UNANSWERED, str(outcome)) if failed else json.loads(str(outcome))
                bar.advance()

            def keep(reply: Reply) -> str:
                # What was read, not the reply: the reasoning of a large data set would take gigabytes.
                return json.dumps(_READ[kind](reply), ensure_ascii=False)

            mapped = []
            for prompt, text, with_images in requests.values():
                content: Content | Callable[[], Content] = text
                shown: Any = text
                if prompt.images and with_images:
                    content = partial(_with_images, prompt.images, self.max_side, text)
                    shown = [[hashlib.sha256(image).hexdigest() for image in prompt.images], self.max_side, text]
                version = [prompts.PROMPT_VERSION, *(RELATION if kind == "solve" else ())]
                what = json.dumps([kind, version, endpoint.body(shown, sampling)], sort_keys=True)
                mapped.append(Request(hashlib.sha256(what.encode()).hexdigest(), content, sampling))
            summary = map_prompts(mapped, endpoint, take, cache=self.cache, keep=keep)
        if summary.stopped:
            raise RunError(
                f"{summary.stopped} {self._finished} of {len(self.rows)} rows are done, and every reply so far is "
                "kept: the same command goes on from there"
            )
        self.asked += summary.asked
        self.known += len(mapped) - summary.asked
        self.sent += summary.sent
        return replies


def _with_images(images: Iterable[bytes], max_side: int, text: str) -> list[dict[str, object]]:
    """Return a message with images as PNG, rotated, scaled down and flattened as the agents will see them."""
    from model_adapters.images import load_image

    parts: list[dict[str, object]] = []
    for image in images:
        file = io.BytesIO()
        load_image(image, max_side).save(file, "PNG")
        address = "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()
        parts.append({"type": "image_url", "image_url": {"url": address}})
    return [*parts, {"type": "text", "text": text}]


def _listed(answers: Sequence[str | None]) -> str:
    return ", ".join("nothing" if answer is None else repr(answer[:60]) for answer in answers)
