"""Model-written code: extract it from a response, run it in a confined process, grade it by its tests.

Off by default: `open_sandbox(run_code=True)` is the only way to a sandbox, and everything that runs code takes one.
THREATS.md lists what is isolated by which layer, and what is not.
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
