"""The CoMAS protocol: several drafts per problem, a sixth call that reads them, and what each way to count gives.

CoMAS (arXiv 2510.08529) draws five drafts at temperature 0.7 and grades a sixth text that reads them; for code its
grader runs every block of that text, so quoting five drafts scores pass@5. Here the sixth text gives one program like
any other, and the paper's replacement stands beside it: programs vote by what they do on public examples. Every
score names its aggregation, because these are different numbers.

Protocol and table sizes are CoMAS'; which problems make up its subsets is unpublished, so ours are drawn by a seed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from eval_suite import pipeline
from eval_suite.folder import EvalFolder
from eval_suite.metrics.aggregate import SIXTH_CALL
from eval_suite.metrics.outcomes import Outcome
from eval_suite.metrics.summary import summarise_outcomes
from eval_suite.sandbox.behaviour import Acts, By, compared_by
from eval_suite.tasks import BENCHMARKS
from mmcorl.answers import Equivalence
from mmcorl.errors import UserError
from mmcorl.labels.voting import TieRule

DRAFTS = 5
TEMPERATURE = 0.7
TOP_P = 0.95
"""Of the paper's measurements; CoMAS names none."""
MAX_NEW_TOKENS = 2048
"""Budget of a draft and of the sixth call."""
SIZES: Mapping[str, int] = {"gsm8k": 500, "math500": 500, "mmlu": 500, "gpqa_main": 448, "scibench": 499} | {
    "humaneval": 164,
    "mbpp": 500,
    "mbpp_zero_shot": 500,
}
"""Problems of each set in CoMAS' tables. All of a set are taken but for GSM8K (of 1,319), MMLU (of 14,042) and
SciBench (of 692); MBPP is asked without examples there (`mbpp_zero_shot`)."""
TIES: TieRule = "first_seen"
"""Drafts of one checkpoint come in no order, so the first of a tie is as good as any; the paper's vote of programs."""


def sixth_prompt(question: str, drafts: Sequence[str]) -> str:
    """What the sixth call reads: the task, the drafts, the request to finish, in CoMAS' words.

    `question` is the whole prompt the drafts answered, with its request for a format.
    """
    if not drafts:
        raise UserError("a sixth call reads drafts, and there are none: sample some first")
    solutions = "".join(f"[Solution {number}]:\n{draft}\n\n" for number, draft in enumerate(drafts, 1))
    return (
        f"[Task]:\n{question}\n\n{solutions}Given the task and all the above solutions, reason over them carefully "
        "and provide a final answer to the task."
    )


def columns(drafts: EvalFolder, sixth: EvalFolder, k: int) -> dict[str, dict[str, Any]]:
    """Aggregation to summary: pass@1, avg@k, maj@k and pass@k of the drafts, and the sixth call.

    pass@1 of k drafts is their mean, so it equals avg@k; both stand here under their names.
    """
    told, last = pipeline.outcomes(drafts), pipeline.outcomes(sixth)
    found = {name: _summary(drafts, told, name) for name in ("pass@1", f"avg@{k}", f"maj@{k}", f"pass@{k}")}
    return found | {SIXTH_CALL: _summary(sixth, last, SIXTH_CALL)}


def program_comparisons(drafts: EvalFolder) -> dict[str, dict[By, int]]:
    """Per coding benchmark the problems whose programs voted by behaviour, by syntax tree, or not at all."""
    problems: dict[str, dict[str, list[Acts]]] = {}
    for row in drafts.rows("behaviour.jsonl"):
        acts = Acts(row["outputs"], row["tree"])
        problems.setdefault(row["benchmark"], {}).setdefault(row["id"], []).append(acts)
    return {name: compared_by(by_id.values()) for name, by_id in problems.items()}


def _summary(folder: EvalFolder, outcomes: Sequence[Outcome], aggregation: str) -> dict[str, Any]:
    items = folder.items()
    names = dict.fromkeys(item.benchmark for item in items)
    with Equivalence() as relation:
        return summarise_outcomes(
            items,
            outcomes,
            {name: BENCHMARKS[name].sub_scores for name in names},
            folder.facts("rule.json") or {},
            judge=folder.facts("judge.json"),
            fingerprints=folder.fingerprints(),
            full_sizes={name: BENCHMARKS[name].rows for name in names},
            aggregations=dict.fromkeys(names, aggregation),
            tie=TIES,
            relation=relation,
            sandbox=(folder.facts("sandbox.json") or {"used": []})["used"],
        )
