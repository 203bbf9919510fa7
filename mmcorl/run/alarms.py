"""Signs of collapse that need no known answer, from the lines of metrics.jsonl.

Votes and confidence say nothing about being right: training on them can make agents surer of the same mistakes. What
peers add is a second opinion, so the strongest sign is that agents become surer without coming closer to each other.
All signs compare the last steps with the first, and a change that may be chance is no sign. Where agents share their
mistakes from the start, as two copies of a model do, agreement looks like success, and no sign can tell.

docs/thesis.md counts misses and false alarms, as `python -m tests.bench.alarms` does for any runs with known answers.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, variance
from typing import Any, Literal

from mmcorl.errors import RunError
from mmcorl.run.reader import dig, mapping, number

WINDOW = 10
"""First steps, and at least as many last ones, that are compared."""
LONGEST = 100
"""Last steps are a third of the run so far, and at most so many: what is kept does not grow with the run."""
ERRORS = 2.5
"""Standard errors, from the scatter of steps, that a change of votes must exceed."""
SURER = 0.03
"""Rise of the share of votes for the majority answer from which agents count as surer."""
APART = 0.15
"""Fall of agreement from its best that is a sign, if it also exceeds `BEST_ERRORS`."""
BEST_ERRORS = 5.0
"""Standard errors: the best of many windows is high by chance, too."""
ENTROPY = 0.25
"""Share of its first entropy at which an agent has hardly any left to explore with."""
CLOSER = 0.1
"""Rise of agreement that explains that loss: peers who learn from each other end up sure, too."""
LENGTH = 2.0
"""Factor by which completions grow or shrink."""
UNANSWERED = 0.25
"""Rise of the share of completions without an answer."""


@dataclass(frozen=True)
class Alarm:
    """One sign, the step at which it was first seen, and what it means."""

    step: int
    kind: str
    sentence: str


class Watch:
    """Looks for signs as steps come in.

    Args:
        action: the setting `logging.alarms`.
        lines: those of metrics.jsonl that a resumed run has already.

    Raises:
        RunError: these hold a sign, and `action` is to stop.
    """

    def __init__(
        self, action: Literal["warn", "stop", "off"] = "warn", lines: Iterable[Mapping[str, Any]] = ()
    ) -> None:
        self.action = action
        self.alarms: list[Alarm] = []
        self._seen = 0
        self._first: list[Mapping[str, Any]] = []
        self._last: deque[Mapping[str, Any]] = deque(maxlen=LONGEST)
        self._best: list[float] = []
        """The steps on which agents agreed most."""
        for line in lines:
            self.see(line)
        self.require_quiet()

    @property
    def stopped(self) -> bool:
        """Whether a sign ends the run."""
        return self.action == "stop" and bool(self.alarms)

    def require_quiet(self) -> None:
        """Raise RunError where a sign ends the run."""
        if self.stopped:
            sign = self.alarms[0]
            raise RunError(f"a sign of collapse at step {sign.step}: {sign.sentence}; logging.alarms=warn goes on")

    def see(self, line: Mapping[str, Any]) -> list[Alarm]:
        """Take one line of metrics.jsonl; return the signs that are new with it, each kind once."""
        self._seen += 1
        if len(self._first) < WINDOW:
            self._first.append(line)
        self._last.append(line)
        if self.action == "off" or self._seen < 2 * WINDOW:
            return []
        last = list(self._last)[-max(WINDOW, self._seen // 3) :]
        known = {alarm.kind for alarm in self.alarms}
        found = [*signs(self._first, last, list(mapping(line.get("agents")))), *self._apart()]
        new = [Alarm(int(line["step"]), kind, sentence) for kind, sentence in found if kind not in known]
        self.alarms += new
        return new

    def _apart(self) -> Iterator[tuple[str, str]]:
        """Yield a sign where agents agree much less than they did at their best."""
        last = [value for line in list(self._last)[-WINDOW:] if (value := _agreement(line)) is not None]
        if len(last) < WINDOW:
            return
        if not self._best or fmean(last) > fmean(self._best):
            self._best = last
        fall = fmean(self._best) - fmean(last)
        if fall >= max(APART, BEST_ERRORS * _error((self._best, last))):
            yield (
                "apart",
                f"agents agree less than they did (on {fmean(last):.2f} of the prompts, at their best on "
                f"{fmean(self._best):.2f}), so what they learn they do not learn from each other: look at their "
                "samples, lower optimizer.lr, or train on a peer's votes",
            )


def _agreement(line: Mapping[str, Any]) -> float | None:
    return number(dig(line, "cohort", "agreement"))


def signs(
    first: Sequence[Mapping[str, Any]], last: Sequence[Mapping[str, Any]], agents: Sequence[str]
) -> Iterator[tuple[str, str]]:
    """Yield (kind, sentence) of every sign between two windows of steps."""

    def series(read: Callable[[Mapping[str, Any]], Any]) -> tuple[list[float], list[float]] | None:
        before, now = ([value for line in window if (value := read(line)) is not None] for window in (first, last))
        return (before, now) if len(before) > 1 and len(now) > 1 else None

    def of(agent: str, key: str) -> tuple[float, float] | None:
        found = series(lambda line: number(dig(line, "agents", agent, key)))
        return (fmean(found[0]), fmean(found[1])) if found else None

    agreement = series(_agreement)

    def share(line: Mapping[str, Any]) -> float:
        return fmean(number(dig(line, "agents", agent, "vote_share")) or 0.0 for agent in agents)

    sure = series(share) if agents else None
    gained = fmean(agreement[1]) - fmean(agreement[0]) if agreement else 0.0
    error = _error(agreement) if agreement else 0.0
    if agreement and sure:
        before, now = map(fmean, sure)
        if now - before >= max(SURER, ERRORS * _error(sure)) and gained + error < now - before:
            yield (
                "surer",
                f"agents are surer of their own answers (the majority's share rose from {before:.2f} to {now:.2f}) but "
                f"agree no more (from {fmean(agreement[0]):.2f} to {fmean(agreement[1]):.2f}), so some become sure of "
                "mistakes: choose partners whose errors overlap less (mmcorl pair), or another supervision",
            )
    for agent in agents:
        if (entropy := of(agent, "entropy")) and 0 <= entropy[1] < ENTROPY * entropy[0] and gained - error < CLOSER:
            yield (
                f"entropy of {agent}",
                f"the entropy of {agent} fell from {entropy[0]:.3g} to {entropy[1]:.3g}; agreement did not rise: it "
                "samples hardly anything new to learn from, so lower optimizer.lr or raise objective.kl_coef",
            )
        if (length := of(agent, "completion_length")) and not 1 / LENGTH < length[1] / max(length[0], 1e-9) < LENGTH:
            yield (
                f"length of {agent}",
                f"the completions of {agent} went from {length[0]:.0f} to {length[1]:.0f} tokens: read some in the "
                "report, and lower optimizer.lr or raise objective.kl_coef if they are empty or endless",
            )
        if (mute := of(agent, "unparsed_share")) and mute[1] - mute[0] >= UNANSWERED:
            yield (
                f"answers of {agent}",
                f"{agent} leaves {mute[1]:.0%} of its completions without an answer, {mute[0]:.0%} at first: check "
                "sampling.max_new_tokens and prompt.style, or lower optimizer.lr",
            )


def _error(windows: Sequence[Sequence[float]]) -> float:
    """Return the standard error of the difference between the means of two windows of steps."""
    return math.sqrt(sum(variance(window) / len(window) for window in windows))
