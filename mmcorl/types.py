"""The data types of the project: prompts go down to the agents, groups of completions come up.

Only strings and floats live here. Tensors stay with the worker that made them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Literal

FinishReason = Literal["stop", "length"]
PromptStyle = Literal["answer_tags", "boxed", "plain", "paper_text", "paper_tags", "paper_boxed"]


@dataclass(frozen=True)
class Prompt:
    """One row of a data set, the same object for every agent."""

    uid: str
    """Hash of the row's text and image bytes: labels and rewards are joined by it, never by position."""
    row_id: str
    """The row's id in its data set, for people."""
    text: str
    """The question, without the instruction that asks for an answer format. `<image>` is the place of an image; where
    neither it nor an earlier turn has one, all images stand in front."""
    images: tuple[bytes, ...] = ()
    """Encoded image files (PNG, JPEG, ...) in reading order, earlier turns included; empty for a text prompt."""
    gold: str | None = None
    """The known answer, for diagnostics and `supervision: gold` only."""
    choices: tuple[str, ...] | None = None
    """Option values in order A, B, C, ...; None when the question is not multiple choice."""
    tag: str | None = None
    """A slice for diagnostics, such as a skill, a level or a subject."""
    views: Mapping[str, str] = field(default_factory=dict)
    """Other wordings of `text` by view name."""
    twin: str | None = None
    """Uid of the same problem in another wording, in the same batch: `supervision: paired` labels each by the other."""
    style: PromptStyle | None = None
    """Answer instruction after this question; None: the run's. `plain` asks for no answer format."""
    calls: tuple[str, ...] | None = None
    """Of a coding problem: calls of the function that is asked for. What a program returns on them is its answer; None:
    answers are texts."""
    quotes: bool = False
    """Whether it quotes model output: control tokens of a chat template are then removed, while in a data set they are
    refused."""
    turns: tuple[tuple[str, str], ...] = ()
    """Earlier turns of the row's conversation, of the user and of the assistant."""
    exchanges: tuple[tuple[str, str], ...] = ()
    """What follows the question where an agent replies again: each time its reply, and the message it got in return,
    with `<image>` for each of its images."""
    system: str | None = None
    """The row's system message, which a run's own replaces."""
    accepted: tuple[str, ...] = ()
    """Further answers that are as right as `gold`."""
    in_text: bool = False
    """Whether it is answered by a text even in a run whose answers are places, as a benchmark of mathematics is."""
    pupils: tuple[str, ...] = ()
    """The agents that are trained on it, where some have data of their own (`agents.X.data`); empty: all. All answer
    it and vote."""

    def trains(self, agent: str) -> bool:
        """Return whether an agent is rewarded and updated on it."""
        return not self.pupils or agent in self.pupils

    @property
    def conversation(self) -> str:
        """System message, earlier turns and question as one text; the question alone where there are no others."""
        if not (self.turns or self.system):
            return self.text
        said = [("System", self.system)] if self.system else []
        said += [turn for asked, answer in self.turns for turn in (("User", asked), ("Assistant", answer))]
        return "\n\n".join(f"{role}: {text}" for role, text in (*said, ("User", self.text)))

    def question(self, view: str = "original") -> str:
        """Return the question in a view; `original` is `text`."""
        return self.text if view == "original" else self.views[view]


@dataclass(frozen=True)
class Completion:
    """One sampled or greedy response."""

    text: str
    answer: str | None
    """The extracted answer, or what its program returns (`mmcorl.answers.outputs`); None: no vote, no reward."""
    tokens: int
    """Completion length in tokens, the stop token included."""
    finish_reason: FinishReason
    confidence: Mapping[str, float] = field(default_factory=dict)
    """Means over the tokens, in nats, of the entropy of the sampling distribution (`entropy`) and of its KL divergence
    from a uniform one (`self_certainty`), and what agents score (`mmcorl.likelihoods`); only where a run needs them."""
    unclosed: bool = False
    """Without an answer, it ended by itself in a tag, box, code or think block that never closes."""
    thinking: bool = False
    """Whether the prompt opened a thought, which the text continues: it has the closing mark alone, or none."""
    logprob: float | None = field(default=None, compare=False)
    """Mean over the tokens of log p, in nats, of each under the distribution that the engine drew it from: at the run's
    temperature, without ids that are never sampled. None where no engine of this run drew the text."""


@dataclass(frozen=True)
class Score:
    """How likely an agent finds a text as its completion of a prompt, token by token of its own tokenizer, in nats.

    The log-probability that a completion begins with the text is the sum of `logprobs`; that it is the text, with
    `stop`. Both are of one way to cut the text into tokens, the tokenizer's: a lower bound over all ways.
    """

    ends: tuple[int, ...]
    """Characters of the text that are whole after each token: a token that only begins a character adds none."""
    logprobs: tuple[float, ...]
    """The log-probability of each token, under the distribution that the agent samples from in training."""
    stop: float
    """That of ending after the text, by the token with which its chat template ends an answer."""

    @property
    def spans(self) -> tuple[tuple[int, int], ...]:
        """The characters (start, end) of each token; together they are the text."""
        return tuple(pairwise((0, *self.ends)))

    def over(self, start: int = 0, end: int | None = None) -> list[float]:
        """Return the log-probabilities of the tokens of some characters, to `end` or, with None, to the stop token.

        Tokens that only partly lie in there are among them; one that only begins a character goes with it. Where no
        token does, as of characters that the tokenizer drops, the stop token counts, as it does for an empty text.
        """
        last = math.inf if end is None else end
        inside = [
            value
            for (first, after), value in zip(self.spans, self.logprobs, strict=True)
            if max(after, first + 1) > start and first < last
        ]
        return inside if inside and end is not None else [*inside, self.stop]


@dataclass(frozen=True)
class Group:
    """The K completions of one prompt by one agent."""

    uid: str
    completions: tuple[Completion, ...]
    """The completions that are rewarded and trained."""
    voters: tuple[Completion, ...] = ()
    """The completions that vote instead: more samples, the K among them, or the EMA teacher's; empty: the K."""

    @property
    def answers(self) -> tuple[str | None, ...]:
        """The K extracted answers, in rollout order."""
        return tuple(completion.answer for completion in self.completions)

    @property
    def ballots(self) -> tuple[str | None, ...]:
        """The answers that vote, in rollout order."""
        return tuple(completion.answer for completion in self.voters or self.completions)

    @property
    def drawn(self) -> bool:
        """Whether any of what votes has tokens: an endpoint may have refused all of it."""
        return any(completion.tokens for completion in self.voters or self.completions)

    @property
    def logprobs(self) -> tuple[float | None, ...]:
        """The mean log-probabilities of what votes, in the order of `ballots`."""
        return tuple(completion.logprob for completion in self.voters or self.completions)

    @property
    def label_likelihood(self) -> float | None:
        """The pseudo-label's probability by the agent, mean over its K reasonings; None where that is not scored."""
        scored = [each.confidence["answer_logprob"] for each in self.completions if "answer_logprob" in each.confidence]
        return math.fsum(map(math.exp, scored)) / len(scored) if scored else None


@dataclass(frozen=True)
class PseudoLabel:
    """The answer that a group is rewarded against, fixed before any policy moves."""

    uid: str
    answer: str | None
    """None: no label; every completion of the group earns 0 and the group gives no gradient."""
    teacher: str
    """Name of the agent whose vote this is, `gold`, or the agents that elected it (`a+b`)."""
    also: tuple[str, ...] = ()
    """Further answers that earn the reward (`supervision: union`)."""
    shares: tuple[tuple[str, float], ...] = ()
    """Every class of answers in the vote, most votes first: its answer as a winner would be written, and its share of
    the votes cast. A known answer has 1.0. Empty where nobody voted, and where a rule does not say."""


def trained_on(
    agent: str, groups: Sequence[Group], labels: Sequence[PseudoLabel], prompts: Sequence[Prompt]
) -> tuple[list[Group], list[PseudoLabel], list[Prompt]]:
    """Return those of an agent's groups, its labels and a step's prompts that the agent is trained on, in order."""
    uids = {prompt.uid for prompt in prompts if prompt.trains(agent)}
    kept = [prompt for prompt in prompts if prompt.uid in uids]
    return [group for group in groups if group.uid in uids], [label for label in labels if label.uid in uids], kept


def twins(prompt: Prompt, view: str) -> tuple[Prompt, Prompt]:
    """Return a prompt in its original wording and in another view, each the other's twin."""
    uid = f"{prompt.uid}-{view}"
    return (
        replace(prompt, twin=uid, views={}),
        replace(prompt, uid=uid, text=prompt.views[view], twin=prompt.uid, views={}),
    )
