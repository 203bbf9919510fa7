"""What a completion earns, given its agent's pseudo-label."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mmcorl.supervision import MismatchError
from mmcorl.types import Group, PseudoLabel
from mmcorl.voting import Choices, Relation


def match(
    groups: Sequence[Group],
    labels: Sequence[PseudoLabel],
    relation: Relation,
    choices_by_uid: Mapping[str, Choices],
) -> dict[str, tuple[float, ...]]:
    """Reward one agent's completions for agreeing with its label: K values of 1.0 or 0.0 per prompt uid.

    1.0 when `relation`, the one the vote used, puts the completion's answer and the label into one class of the
    group's answers and the label. With a label that the group itself elected, these are the votes for it. A
    completion without an answer earns 0.0, and without a label the whole group does, so it gives no gradient.
    Groups and labels are joined by uid; MismatchError when they are not about the same prompts.
    """
    label_of = {label.uid: label for label in labels}
    if len(label_of) != len(labels) or label_of.keys() != {group.uid for group in groups}:
        differing = sorted(label_of.keys() ^ {group.uid for group in groups}) or ["(one of them twice)"]
        raise MismatchError(f"labels and groups are not about the same prompts: {differing[0]}")
    rewards: dict[str, tuple[float, ...]] = {}
    for group in groups:
        label = label_of[group.uid].answer
        if label is None:
            rewards[group.uid] = (0.0,) * len(group.completions)
            continue
        target, *own = relation.classes([label, *group.answers], choices_by_uid[group.uid])
        rewards[group.uid] = tuple(1.0 if mine is not None and mine == target else 0.0 for mine in own)
    return rewards
