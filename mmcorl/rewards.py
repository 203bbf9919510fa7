"""What a completion earns: functions of groups, of labels where a reward has use for them, and of nothing else.

`match` is the reward of every label-based method; who taught the label is `supervision`'s business. `confidence` is
that of the methods without labels: RENT and Intuitor reward a model for being sure. `Reward` is what a run calls.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from mmcorl.answers.cleanup import strip_special_tokens
from mmcorl.answers.extract import extract
from mmcorl.labels.supervision import MismatchError
from mmcorl.labels.voting import Choices, Relation
from mmcorl.types import Completion, Group, Prompt, PseudoLabel

Kind = Literal["match", "entropy", "self_certainty"]
Rewards = dict[str, tuple[float, ...]]
Shaping = Literal["quality", "margin"]

MEASURED: tuple[Kind, ...] = ("entropy", "self_certainty")
"""Rewards for which workers measure `Completion.confidence`."""


@dataclass(frozen=True)
class Reward:
    """The reward of a run: from one agent's groups, its labels and the prompts to K rewards per prompt uid.

    The fields are those of the `reward` section, the relation of the vote and `prompt.style`.
    """

    relation: Relation
    kind: Kind = "match"
    unanswered_entropy: float | None = None
    format: float = 0.0
    style: str = "answer_tags"

    def __call__(self, groups: Sequence[Group], labels: Sequence[PseudoLabel], batch: Sequence[Prompt]) -> Rewards:
        if self.kind == "match":
            earned = match(groups, labels, self.relation, {prompt.uid: prompt.choices for prompt in batch})
        else:
            earned = confidence(groups, self.kind, self.unanswered_entropy)
        if not self.format:
            return earned
        return {
            group.uid: tuple(
                value + self.format * has_form(completion.text, self.style)
                for value, completion in zip(earned[group.uid], group.completions, strict=True)
            )
            for group in groups
        }


def match(
    groups: Sequence[Group],
    labels: Sequence[PseudoLabel],
    relation: Relation,
    choices_by_uid: Mapping[str, Choices],
) -> Rewards:
    """Reward one agent's completions for agreeing with its label: K values of 1.0 or 0.0 per prompt uid.

    1.0 when `relation`, the one the vote used, puts the completion's answer and the label, or one of its further
    answers, into one class of the group's answers and the label. With a label that the group itself elected, these
    are the votes for it. A completion without an answer earns 0.0, and without a label the whole group does, so it
    gives no gradient. Groups and labels are joined by uid; MismatchError when they are not about the same prompts.
    """
    label_of = {label.uid: label for label in labels}
    if len(label_of) != len(labels) or label_of.keys() != {group.uid for group in groups}:
        differing = sorted(label_of.keys() ^ {group.uid for group in groups}) or ["(one of them twice)"]
        raise MismatchError(f"labels and groups are not about the same prompts: {differing[0]}")
    rewards: Rewards = {}
    for group in groups:
        label = label_of[group.uid]
        if label.answer is None:
            rewards[group.uid] = (0.0,) * len(group.completions)
            continue
        wanted = [label.answer, *label.also]
        classes = relation.classes([*wanted, *group.answers], choices_by_uid[group.uid])
        targets, own = set(classes[: len(wanted)]) - {None}, classes[len(wanted) :]
        rewards[group.uid] = tuple(float(mine in targets) for mine in own)
    return rewards


def confidence(groups: Sequence[Group], kind: Kind, unanswered_entropy: float | None = None) -> Rewards:
    """Reward completions for how sure the model was of them, which workers have measured.

    `entropy`: minus the mean entropy of the completion's tokens, in nats (RENT). With `unanswered_entropy`, one without
    an answer counts as one of that entropy instead (RENT's variant for formats has 7.0).
    `self_certainty`: the mean KL divergence of the model's distribution from a uniform one, in nats (Intuitor).
    """

    def earned(completion: Completion) -> float:
        if kind == "self_certainty":
            return completion.confidence["self_certainty"]
        if unanswered_entropy is not None and completion.answer is None:
            return -unanswered_entropy
        return -completion.confidence["entropy"]

    return {group.uid: tuple(earned(completion) for completion in group.completions) for group in groups}


def has_form(text: str, style: str) -> bool:
    """Whether a response is written as `prompt.style` asks.

    `answer_tags`: a think block and an answer, each once, neither blank, and nothing around them. `boxed`: the last
    commitment is a box that closes and is not blank. `plain` asks for nothing.
    """
    if style == "boxed":
        return extract(text).source == "boxed"
    if style == "plain":
        return True
    text = strip_special_tokens(text).strip()
    if any(text.count(tag) != 1 for tag in ("<think>", "</think>", "<answer>", "</answer>")):
        return False
    before, _, rest = text.partition("<think>")
    thought, _, rest = rest.partition("</think>")
    between, _, rest = rest.partition("<answer>")
    answer, _, after = rest.partition("</answer>")
    return bool(thought.strip() and answer.strip()) and not (before + between.strip() + after)


def shaped(
    reward: float,
    earlier: float,
    kind: Shaping = "margin",
    alpha: float = 0.5,
    outcome: float = 0.0,
    beta: float = 0.5,
) -> float:
    """A reward of a later turn in the light of the turns before it, as MARTI shapes it.

    With R the turn's own reward and Q the mean reward of earlier turns (in a debate those of all agents, in a chain
    those of the same one), both in [0, 1]: `quality` is R + alpha (Q R - (1 - Q)(1 - R)), `margin` R + alpha (R - Q),
    MARTI's default; beta * `outcome`, the raw reward of how it all ended, is added (its `with_outcome` variants).
    """
    if kind not in get_args(Shaping):
        raise ValueError(f"shaping {kind!r} is unknown: use one of {', '.join(get_args(Shaping))}")
    gain = earlier * reward - (1 - earlier) * (1 - reward) if kind == "quality" else reward - earlier
    return reward + alpha * gain + beta * outcome
