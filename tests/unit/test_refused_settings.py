"""Settings of a policy step that cannot work: each is refused in one sentence with the value and the way out."""

from __future__ import annotations

from typing import Any

import pytest

from mmcorl.errors import UserError
from worker_parts import settings

# Sections, and what the sentence must name.
REFUSED: list[tuple[dict[str, Any], list[str]]] = [
    ({"objective": {"kind": "gspo", "ratio": "token"}}, ["'gspo'", "ratio 'sequence'"]),
    ({"objective": {"kind": "grpo", "advantage": "rloo"}}, ["'grpo'", "advantage 'group'"]),
    ({"objective": {"kind": "ppo"}}, ["'ppo'", "grpo", "cispo"]),
    ({"objective": {"kl_coef": 0.1, "kl_estimator": "k1"}}, ["'k1'", "kl_in=reward"]),
    ({"objective": {"kind": "reinforce_pp", "kl_coef": 0.1, "ratio": "sequence"}}, ["'sequence'", "ratio=token"]),
    ({"objective": {"clip_dual": 1.1}}, ["clip_dual is 1.1", "clip_high 0.2"]),
    ({"objective": {"kind": "cispo", "clip_dual": 9.0}}, ["clip_dual is 9", "'cispo'"]),
    ({"objective": {"importance_correction": "sequence_mask"}}, ["'sequence_mask'", "token_truncate"]),
    ({"batch": {"completions": 1}}, ["batch.completions is 1", "at least 2", "reinforce_pp"]),
    ({"reward": "gold"}, ["'gold'", "match", "self_certainty"]),
    ({"reward": {"unanswered_entropy": 7.0}}, ["unanswered_entropy is 7"]),
    ({"reward": {"format": 0.1}}, ["reward.format is 0.1", "'plain'", "format=0"]),
    ({"reward": {"kind": "entropy", "formt": 1}}, ["'reward.formt'", "'reward.format'"]),
    ({"supervision": {"kind": "self", "votes": 3}}, ["votes is 3", "batch.completions"]),
    ({"supervision": {"kind": "self", "min_votes": 5}}, ["min_votes is 5", "4"]),
    ({"supervision": {"kind": "map"}}, ["'map'", "supervision.teachers"]),
    ({"supervision": {"kind": "self", "teachers": {"a": "a"}}}, ["'self'", "supervision.teachers"]),
    ({"supervision": {"kind": "map", "teachers": {"a": "b"}}}, ["'b'"]),
    ({"supervision": {"kind": "paired"}}, ["'paired'", "supervision.pair"]),
    ({"supervision": {"kind": "paired", "pair": "easy"}}, ["'easy'", "views"]),
    ({"supervision": {"kind": "strict"}}, ["'strict'", "1 agent", "2"]),
    ({"training": {"offload": "all"}}, ["'all'", "'none'"]),
    ({"training": {"sharding": "zero2", "offload": "all"}}, ["'zero2'", "optimizer"]),
    ({"training": {"sharding": "fsdp2", "offload": "optimizer"}}, ["'fsdp2'", "all"]),
    ({"training": {"sharding": "zero1"}}, ["'zero1'", "zero2"]),
]


@pytest.mark.parametrize(("sections", "words"), REFUSED)
def test_what_cannot_work_is_refused_in_a_sentence(sections: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(UserError) as refused:
        settings(**sections)
    assert [word for word in words if word not in str(refused.value)] == [], str(refused.value)
    assert "\n" not in str(refused.value)
