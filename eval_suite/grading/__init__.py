"""Two-stage grading: rules first, then a judge, if there is one, for what they could not credit.

    from eval_suite.grading import grade
    verdict = grade(response, gold, question, choices)

Use one `Grader` for many responses: it keeps its worker process and its memory of comparisons.
"""

from eval_suite.grading.gold import clean_gold
from eval_suite.grading.grader import Grader, Judge, grade
from eval_suite.grading.options import parse_options
from eval_suite.grading.reference import Reference
from eval_suite.grading.rules import RuleResult
from eval_suite.grading.verdict import GRADER, Verdict
from eval_suite.items import McqPolicy

__all__ = [
    "GRADER",
    "Grader",
    "Judge",
    "McqPolicy",
    "Reference",
    "RuleResult",
    "Verdict",
    "clean_gold",
    "grade",
    "parse_options",
]
