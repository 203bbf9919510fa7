"""From one agent's rewards to the advantage of every token, over all its ranks.

Estimators that compare the completions of a group need nothing of other ranks. Those that whiten need to know how the
tokens of the whole batch are spread, which ranks tell each other in five numbers: nothing depends on how the batch is
divided among ranks or micro-batches.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from mmcorl.algo import loss
from mmcorl.config import ObjectiveSettings
from mmcorl.sharding.ranks import Ranks


def token_advantages(
    rewards: Sequence[Sequence[float]],
    divergences: Sequence[Sequence[Tensor]],
    counted: Sequence[Sequence[bool]],
    objective: ObjectiveSettings,
    ranks: Ranks,
) -> list[list[Tensor]]:
    """Advantages (C,) in fp32 of the tokens of each completion of this rank's groups; all ranks take part.

    `rewards` r are one number per completion, `divergences` one tensor (C,) each: the estimated KL to the reference
    where the reward is to be less for it, else zeros. `counted`: whether a completion's tokens count in the loss.
    Groups may differ in size. With P, the penalty, `kl_coef` times the sum of a completion's divergences:

    `group`: (R - mean) / (std + eps) with R = r - P, within the group.
    `rloo`: R minus the mean of the others of the group.
    `reinforce_pp`: r minus the penalties of a token and all after it, whitened over the counted tokens of all ranks;
        needs no group.
    `reinforce_pp_baseline`: R minus the mean of the group, whitened likewise.
    """
    if objective.advantage == "reinforce_pp":
        raw = [
            [loss.returns(r, objective.kl_coef * kl) for r, kl in zip(*group, strict=True)]
            for group in zip(rewards, divergences, strict=True)
        ]
    else:
        raw = [_in_group(*group, objective) for group in zip(rewards, divergences, strict=True)]
    if objective.advantage in ("group", "rloo"):
        return raw
    own = [one for row, told in zip(raw, counted, strict=True) for one, counts in zip(row, told, strict=True) if counts]
    spread = loss.Spread.joined(ranks.gather(loss.Spread.of(torch.cat([*own, torch.zeros(0)]))))
    return [
        [loss.whitened(one, spread, objective.advantage_std, objective.advantage_eps) for one in row] for row in raw
    ]


def _in_group(rewards: Sequence[float], divergences: Sequence[Tensor], objective: ObjectiveSettings) -> list[Tensor]:
    """The completions of one group against each other; the same number at all tokens of a completion."""
    penalties = objective.kl_coef * torch.stack([kl.sum() for kl in divergences])
    scores = (torch.tensor(list(rewards), dtype=torch.float32) - penalties)[None]
    if objective.advantage == "rloo":
        found = loss.leave_one_out_advantages(scores)
    else:
        std = objective.advantage_std if objective.advantage == "group" else "none"
        found = loss.group_advantages(scores, std, objective.advantage_eps)
    return [value.expand(len(kl)) for value, kl in zip(found[0], divergences, strict=True)]
