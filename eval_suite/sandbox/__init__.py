"""Model-written code: finding it in a response, running it in a confined process, grading it by its tests.

Off unless asked: `open_sandbox(run_code=True)` is the only way to a sandbox, and everything that runs code takes one.
"""

from eval_suite.sandbox.code_task import CodeGrade, grade_code
from eval_suite.sandbox.extract import CodeAnswer, extract_code
from eval_suite.sandbox.process import Limits, Sandbox, open_sandbox
from eval_suite.sandbox.run_tests import CodeResult, Program, TestResult

__all__ = [
    "CodeAnswer",
    "CodeGrade",
    "CodeResult",
    "Limits",
    "Program",
    "Sandbox",
    "TestResult",
    "extract_code",
    "grade_code",
    "open_sandbox",
]
