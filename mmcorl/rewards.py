"""Rewards: what each completion of a group earns.

A reward is a function called once per group, by keyword, that returns one number per completion. It takes what it
needs by parameter name (`ARGUMENTS`); every argument that TRL also has is a list of K, so a reward function written
for TRL's GRPOTrainer works unchanged:

    def short(completions, answers, **kwargs):
        return [float(answer is not None) - len(text) / 2000 for text, answer in zip(completions, answers)]

    reward: my_rewards.py:short     # beside the config or in the working folder

Naming `entropy` or `self_certainty` as a parameter makes the workers measure it, naming `peer_logprob` or
`answer_logprob` makes agents score texts (`mmcorl.likelihoods`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Self

from pydantic import Field, ValidationInfo, model_validator

from mmcorl.answers.cleanup import strip_special_tokens
from mmcorl.answers.extract import extract
from mmcorl.answers.relation_base import Choices, Relation
from mmcorl.errors import RunError, UserError
from mmcorl.labels.supervision import MismatchError
from mmcorl.registry import Row, Table, check_keywords, parameters, raised, shown
from mmcorl.section import Section, not_imported, row_of
from mmcorl.types import Group, Prompt, PseudoLabel

Rewards = dict[str, tuple[float, ...]]

MEASURED = ("entropy", "self_certainty")
"""Arguments that workers measure, at the cost of a forward pass: means over a completion's tokens, in nats."""
SCORED = ("peer_logprob", "answer_logprob")
"""Arguments for which agents score texts before the first update of a step, at the cost of a forward pass."""


@dataclass(frozen=True)
class RewardRow(Row):
    """A reward and what follows from its parameters; without a title where the supervision rule says more."""

    @property
    def measured(self) -> tuple[str, ...]:
        """Which of `MEASURED` it needs."""
        return tuple(name for name in MEASURED if name in parameters(self.function)[0])

    @property
    def scored(self) -> tuple[str, ...]:
        """Which of `SCORED` it needs."""
        return tuple(name for name in SCORED if name in parameters(self.function)[0])

    @property
    def takes_logprobs(self) -> bool:
        """Whether it reads the log-probabilities of what was sampled."""
        return "logprobs" in parameters(self.function)[0]

    @property
    def settings(self) -> tuple[str, ...]:
        """The settings of the `reward` section that it uses."""
        return tuple(name for name in SETTINGS if name in parameters(self.function)[0])

    @property
    def uses_labels(self) -> bool:
        """Whether it reads the pseudo-labels, which are only recorded otherwise."""
        names, others = parameters(self.function)
        return others or not {"label", "pseudo_labels", "shares", "answer_logprob"}.isdisjoint(names)

    @property
    def uses_shares(self) -> bool:
        """Whether it reads the shares of the vote, which votes.jsonl then holds."""
        return "shares" in parameters(self.function)[0]

    @property
    def needs_gold(self) -> bool:
        """Whether it reads the known answers, so that every training row must have one."""
        return "golds" in parameters(self.function)[0]


ARGUMENTS = {
    "completions": "K texts",
    "prompts": "the question, K times",
    "answers": "K extracted answers, None where there is none",
    "pseudo_labels": "the pseudo-label or None, K times",
    "golds": "the known answer, K times",
    "lengths": "K lengths in tokens",
    "truncated": "K times whether the token limit cut the completion off",
    "entropy": "K mean entropies of the token distributions, in nats",
    "self_certainty": "K mean KL divergences KL(U || p), in nats",
    "logprobs": "K mean log-probabilities of the sampled tokens, in nats",
    "peer_logprob": "K mean log-probabilities per token that the teacher gives the completion, in nats",
    "answer_logprob": "K log-probabilities of the pseudo-label in place of the own answer, by oneself, in nats",
    "label": "the whole PseudoLabel",
    "shares": "(answer, share of the votes) of each class of the vote that gave the label, most votes first",
    "choices": "the option values, or None",
    "relation": "the run's answer relation",
    "unanswered_entropy": "reward.unanswered_entropy",
    "min_likelihood": "reward.min_likelihood",
}
"""What a reward function may take."""
SETTINGS = ("unanswered_entropy", "min_likelihood")
"""Arguments that are settings of the `reward` section."""
MIN_LIKELIHOOD = 0.1
"""Default of `reward.min_likelihood`."""

REWARDS: Table[RewardRow] = Table("reward", RewardRow, lambda row: check_keywords(row, "reward", ARGUMENTS))


@REWARDS.add("match", "1 where the answer equals the pseudo-label, else 0")
def match(
    answers: Sequence[str | None], label: PseudoLabel, relation: Relation, choices: Choices = None
) -> tuple[float, ...]:
    """Reward answers for agreeing with a label: K values of 1.0 or 0.0.

    1.0 where `relation`, the one the vote used, puts the answer and the label, or one of its further answers, into one
    class. With a label that the group itself elected, these are the votes for it. Where votes count equal strings, an
    answer earns 1.0 by having the label's value; where answers are only alike (boxes, readings), by being alike enough.
    No answer earns 0.0; without a label the whole group does, so it gives no gradient.
    """
    if label.answer is None:
        return (0.0,) * len(answers)
    return tuple(map(float, relation.supports([label.answer, *label.also], answers, choices)))


@REWARDS.add("similarity", "how alike answer and pseudo-label are, from 0 to 1: overlap of boxes, edit similarity")
def similarity(
    answers: Sequence[str | None], label: PseudoLabel, relation: Relation, choices: Choices = None
) -> tuple[float, ...]:
    """Reward answers for how alike they are to a label, or to the closest of its answers: K values from 0.0 to 1.0.

    With a relation of equal values this is `match`. No answer earns 0.0; without a label the whole group does.
    """
    if not relation.graded:
        return match(answers, label, relation, choices)
    wanted = [one for one in (label.answer, *label.also) if one is not None]
    return tuple(max((relation.similarity(one, answer, choices) for one in wanted), default=0.0) for answer in answers)


@REWARDS.add("share", "share of the label's votes that the answer's class has (TTRV, EvoLMM)")
def share(
    answers: Sequence[str | None],
    shares: Sequence[tuple[str, float]],
    label: PseudoLabel,
    relation: Relation,
    choices: Choices = None,
) -> tuple[float, ...]:
    """Reward answers by how often the label's vote gave them: K values from 0.0 to 1.0.

    With `supervision: self` this is TTRV's frequency reward (arXiv 2510.06783) and EvoLMM's continuous self-consistency
    (arXiv 2511.16672, exponent 1), over the votes cast; with `ring` the frequency is the peer's. No answer, and one
    that nobody voted for, earns 0.0; without a label the whole group does. Of several classes that an answer belongs
    to, the first counts.
    """
    if label.answer is None:
        return (0.0,) * len(answers)
    if not shares:
        raise RunError(
            f"reward 'share' has a label of {label.teacher!r} without shares: have the supervision rule return "
            "rollouts.label(b, vote, teacher), or use reward=match"
        )
    earned = [0.0] * len(answers)
    for winner, value in reversed(shares):
        supported = relation.supports([winner], answers, choices)
        earned = [value if has else before for has, before in zip(supported, earned, strict=True)]
    return tuple(earned)


@REWARDS.add("entropy", "minus the mean token entropy (RENT)", title="RENT: own low entropy")
def low_entropy(
    entropy: Sequence[float], answers: Sequence[str | None], unanswered_entropy: float | None = None
) -> tuple[float, ...]:
    """Reward low entropy, in nats; with `unanswered_entropy`, no answer counts as that much (RENT's variant: 7.0)."""
    return tuple(
        -unanswered_entropy if unanswered_entropy is not None and answer is None else -value
        for value, answer in zip(entropy, answers, strict=True)
    )


@REWARDS.add("self_certainty", "mean KL(U || p) of the token distribution", title="Intuitor: own self-certainty")
def certainty(self_certainty: Sequence[float]) -> tuple[float, ...]:
    """Reward self-certainty, KL(U || p) in nats (Intuitor)."""
    return tuple(self_certainty)


@REWARDS.add(
    "peer_likelihood",
    "mean log-probability per token that the teacher gives the completion (Cross-Model Entropy)",
    title="CME: a peer's likelihood",
)
def peer_likelihood(peer_logprob: Sequence[float]) -> tuple[float, ...]:
    """Reward what the teacher finds likely, in nats per token of its own (Cross-Model Entropy, arXiv 2605.29009)."""
    return tuple(peer_logprob)


@REWARDS.add("answer_likelihood", "probability of the pseudo-label after one's own reasoning (VeriFree)")
def answer_likelihood(answer_logprob: Sequence[float]) -> tuple[float, ...]:
    """Reward reasoning by how likely it makes the label: K probabilities (VeriFree, arXiv 2505.21493).

    What `match` would earn on average, were the answer drawn again after the same reasoning.
    """
    return tuple(map(math.exp, answer_logprob))


@REWARDS.add("gated_match", "as `match`, unless the agent finds the pseudo-label too unlikely (`min_likelihood`)")
def gated_match(
    answers: Sequence[str | None],
    label: PseudoLabel,
    answer_logprob: Sequence[float],
    relation: Relation,
    choices: Choices = None,
    min_likelihood: float | None = None,
) -> tuple[float, ...]:
    """Reward agreement with labels that the agent itself finds likely enough: K values of 1.0 or 0.0.

    The label's probability in place of the agent's answers, after each of its K reasonings, is estimated by their mean;
    below `min_likelihood` (None: `MIN_LIKELIHOOD`) the whole group earns 0.0, so it gives no gradient.
    """
    least = MIN_LIKELIHOOD if min_likelihood is None else min_likelihood
    if not answers or math.fsum(map(math.exp, answer_logprob)) / len(answers) < least:
        return (0.0,) * len(answers)
    return match(answers, label, relation, choices)


RewardName = Annotated[str, row_of(REWARDS)]


class RewardSettings(Section):
    kind: RewardName = "match"
    """How a completion is rewarded: by a reward of `mmcorl.rewards`, such as 1 where its answer equals the pseudo-label
    (`match`), how sure the model was (`entropy`, RENT; `self_certainty`, Intuitor) or how likely the teacher finds it
    (`peer_likelihood`, CME), for which labels are only recorded; or your own, `file.py:name`. `reward: KIND` is short
    for it."""
    unanswered_entropy: float | None = Field(default=None, ge=0)
    """With `entropy`: a completion without an answer counts as one of this entropy, in nats (RENT's variant: 7.0)."""
    min_likelihood: float | None = Field(default=None, ge=0, le=1)
    """With `gated_match`: the least mean probability, by the agent itself after its K reasonings, of a pseudo-label
    that is used (default 0.1)."""
    format: float = Field(default=0.0, ge=0)
    """Added to the reward of a completion that is written as `prompt.style` asks; 0 (the paper) adds nothing."""

    @model_validator(mode="before")
    @classmethod
    def _by_its_kind(cls, value: Any) -> Any:
        return {"kind": value} if isinstance(value, str) else value

    @model_validator(mode="after")
    def _measured(self, info: ValidationInfo) -> Self:
        for key in SETTINGS if not not_imported(self.kind, info) else ():
            if getattr(self, key) is not None and key not in REWARDS.find(self.kind).settings:
                raise ValueError(
                    f"{key} is {getattr(self, key):g} but kind is {self.kind!r}, which does not use it: leave it out"
                )
        return self


def source_of_rewards(supervision: str | None, reward: str, episode: str | None) -> str | None:
    """Return the kind that decides what is rewarded: an episode, a reward without labels, else who gives the labels."""
    if episode:
        return episode
    return supervision if reward in REWARDS and REWARDS[reward].uses_labels else reward


@dataclass(frozen=True)
class Reward:
    """The reward of a run: from one agent's groups, its labels and the prompts to K rewards per prompt uid.

    The fields are those of the `reward` section, the relation of the vote and the form that `prompt.style` asks for.
    """

    relation: Relation
    kind: str = "match"
    unanswered_entropy: float | None = None
    min_likelihood: float | None = None
    format: float = 0.0
    form: str = "answer_tags"

    def __call__(self, groups: Sequence[Group], labels: Sequence[PseudoLabel], batch: Sequence[Prompt]) -> Rewards:
        """Reward every group; MismatchError unless groups, labels and prompts have the same uids."""
        label_of: Mapping[str, PseudoLabel] = {label.uid: label for label in labels}
        prompt_of = {prompt.uid: prompt for prompt in batch}
        if len(label_of) != len(labels) or label_of.keys() != {group.uid for group in groups}:
            differing = sorted(label_of.keys() ^ {group.uid for group in groups}) or ["(one of them twice)"]
            raise MismatchError(f"labels and groups are not about the same prompts: {differing[0]}")
        return {group.uid: self._of_group(group, label_of[group.uid], prompt_of[group.uid]) for group in groups}

    def _of_group(self, group: Group, label: PseudoLabel, prompt: Prompt) -> tuple[float, ...]:
        row = REWARDS.find(self.kind)
        named, others = parameters(row.function)
        k, each = len(group.completions), group.completions
        given: dict[str, Any] = {
            "completions": [one.text for one in each],
            "prompts": [prompt.conversation] * k,
            "answers": list(group.answers),
            "pseudo_labels": [label.answer] * k,
            "golds": [prompt.gold] * k,
            "lengths": [one.tokens for one in each],
            "truncated": [one.finish_reason == "length" for one in each],
            "logprobs": [completion.logprob for completion in each],
            "label": label,
            "shares": label.shares,
            "choices": prompt.choices,
            "relation": self.relation,
            "unanswered_entropy": self.unanswered_entropy,
            "min_likelihood": self.min_likelihood,
        }
        wanted = {name: value for name, value in given.items() if others or name in named}
        wanted |= {name: [one.confidence[name] for one in each] for name in (*MEASURED, *SCORED) if name in named}
        result = row.function(**wanted)
        if isinstance(result, Iterator):
            try:
                result = list(result)
            except (UserError, RunError):
                raise
            except (Exception, SystemExit) as error:  # its code runs only here
                raise raised(f"reward {shown(self.kind)!r}", row.function, error) from error
        values = _numbers(self.kind, result, len(each), prompt.row_id)
        if not self.format:
            return values
        return tuple(
            value + self.format * has_form(completion.text, self.form, thinking=completion.thinking)
            for value, completion in zip(values, group.completions, strict=True)
        )


def with_signal(rewards: Rewards, groups: int) -> Rewards:
    """Keep the first `groups` groups whose rewards are not all equal, filled up by the first others, in their order.

    Equal rewards have advantages of zero. DAPO (arXiv 2503.14476, section 3.2) samples on until enough groups differ;
    here the further prompts are bounded and sampled with the others, so that peers, whose groups differ on different
    prompts, answer the same ones without another turn, and which rows a step reads hangs on nothing that was sampled.
    """
    kept = {*sorted(rewards, key=lambda uid: len(set(rewards[uid])) == 1)[:groups]}
    return {uid: values for uid, values in rewards.items() if uid in kept}


def _numbers(kind: str, result: Any, completions: int, row: str) -> tuple[float, ...]:
    """Check what a reward returned: K finite numbers."""
    try:
        result = list(result)
        if text := next((value for value in result if isinstance(value, str | bytes)), None):
            raise TypeError(f"{text!r} is a text")
        values = tuple(float(value) for value in result)
    except Exception as error:
        raise RunError(
            f"reward {shown(kind)!r} returned {result!r}, not a list of numbers ({error}): correct it"
        ) from error
    if len(values) != completions:
        raise RunError(
            f"reward {shown(kind)!r} returned {len(values)} numbers for the {completions} completions of row {row!r}: "
            "return one per completion"
        )
    if not all(map(math.isfinite, values)):
        raise RunError(f"reward {shown(kind)!r} returned {values} for row {row!r}: rewards must be finite")
    return values


def has_form(text: str, form: str, *, thinking: bool = False) -> bool:
    """Return whether a response has the form that `prompt.style` asks for.

    `answer_tags`: a think block and an answer, each once, neither blank, and nothing around them. `boxed`: the last
    commitment is a box that closes and is not blank. `plain` asks for nothing. `thinking`: the prompt opened the block.
    """
    if form == "boxed":
        return extract(text, thinking=thinking).source == "boxed"
    if form == "plain":
        return True
    text = "<think>" * thinking + strip_special_tokens(text).strip()
    if any(text.count(tag) != 1 for tag in ("<think>", "</think>", "<answer>", "</answer>")):
        return False
    before, _, rest = text.partition("<think>")
    thought, _, rest = rest.partition("</think>")
    between, _, rest = rest.partition("<answer>")
    answer, _, after = rest.partition("</answer>")
    return bool(thought.strip() and answer.strip()) and not (before + between.strip() + after)
