"""MBPP: write a short Python function from a sentence and three assertions.

Hub      google-research-datasets/mbpp, config full, split test (500 rows, task_id 11 to 510).
Columns  task_id, text, code, test_list (three assertions), test_setup_code, challenge_test_list.
Licence  CC BY 4.0.
Metric   pass@1: all three assertions hold.
Forms    `mbpp` is the 3-shot prompt of the data set's authors with the tasks 2, 3 and 4 and answers between [BEGIN]
         and [DONE] (Austin et al. 2021; the paper's column). `mbpp_zero_shot` asks for a fenced block, as CoMAS does.
         `mbpp_instruct` is lm-evaluation-harness' task of that name (version 1): the same three problems as turns, an
         answer begun with a fence, and of the response the text up to the next one, without which it has no program.
         The harness's budget is 256 tokens, here it is the protocol's; the set-up code of task 367 runs here only.
Traps
- The prompt shows all three assertions, so the held-out one of the behaviour vote is held out of the vote only.
- Task 367 builds its input from a class of the solution (`Node`): objects stay in the solution's process and the
  tests hold a name for them. Task 126 is about a function called `sum`.
- The reference solution of task 123 needs 4 s on a slow core, more than the customary 3 s; the limit here is 10 s
  of CPU time.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from eval_suite.benchmarks.base import Benchmark, Row
from mmcorl.data.row_parsing import RowError
from mmcorl.grading.code_task import CodeTask, ExtractedProgram, texts
from mmcorl.grading.items import Item, Response
from mmcorl.sandbox.calls import calls_of
from mmcorl.sandbox.extract import CodeAnswer, definitions, extract_code
from mmcorl.sandbox.process import Sandbox
from mmcorl.sandbox.run_tests import CodeResult, Observation, Program, observe_calls, run_python_tests

SECONDS = 10.0
_BEGIN, _DONE = "[BEGIN]", "[DONE]"

_ASK = (
    "You are an expert Python programmer, and here is your task: {text} Your code should pass these tests:\n\n{tests}\n"
)
_SHOTS: Sequence[tuple[str, Sequence[str], str]] = (
    (
        "Write a function to find the similar elements from the given two tuple lists.",
        (
            "assert similar_elements((3, 4, 5, 6),(5, 7, 4, 10)) == (4, 5)",
            "assert similar_elements((1, 2, 3, 4),(5, 4, 3, 7)) == (3, 4)",
            "assert similar_elements((11, 12, 14, 13),(17, 15, 14, 13)) == (13, 14)",
        ),
        "def similar_elements(test_tup1, test_tup2):\n  res = tuple(set(test_tup1) & set(test_tup2))\n  return (res) ",
    ),
    (
        "Write a python function to identify non-prime numbers.",
        ("assert is_not_prime(2) == False", "assert is_not_prime(10) == True", "assert is_not_prime(35) == True"),
        "import math\ndef is_not_prime(n):\n    result = False\n    for i in range(2,int(math.sqrt(n)) + 1):\n"
        "        if n % i == 0:\n            result = True\n    return result",
    ),
    (
        "Write a function to find the largest integers from a given list of numbers using heap queue algorithm.",
        (
            "assert heap_queue_largest( [25, 35, 22, 85, 14, 65, 75, 22, 58],3)==[85, 75, 65] ",
            "assert heap_queue_largest( [25, 35, 22, 85, 14, 65, 75, 22, 58],2)==[85, 75] ",
            "assert heap_queue_largest( [25, 35, 22, 85, 14, 65, 75, 22, 58],5)==[85, 75, 65, 58, 35]",
        ),
        "import heapq as hq\ndef heap_queue_largest(nums,n):\n  largest_nums = hq.nlargest(n, nums)\n"
        "  return largest_nums",
    ),
)
"""Tasks 2, 3 and 4 of the data set (CC BY 4.0, Austin et al.), which belong to no scored split."""


_INSTRUCT = (
    "You are an expert Python programmer, and here is your task:\n{text}\nYour code should pass these tests:\n{tests}"
)
_FENCE, _BEGUN = "```", "\n```python\n"
_LANGUAGE = re.compile(r"\w+[ \t]*\n")


def _asked(text: str, tests: Sequence[str]) -> str:
    return _ASK.format(text=text, tests="\n".join(tests)) + _BEGIN + "\n"


def _stored(code: str) -> str:
    return code.replace("\n", "\r\n")  # the harness has the line ends of the data set


FEW_SHOT = "".join(_asked(text, tests) + _stored(code) + f"\n{_DONE}\n\n" for text, tests, code in _SHOTS)


def _instructed(text: str, tests: Sequence[str]) -> str:
    return _INSTRUCT.format(text=text, tests="\n".join(tests[:3]))


INSTRUCT_SHOTS = tuple(
    (_instructed(text, tests), _BEGUN + _stored(code) + "\n" + _FENCE) for text, tests, code in _SHOTS
)


def _item(row: Row, question: str, **turns: Any) -> Item:
    tests = [test.strip() for test in row.texts("test_list")]
    setup = (row.maybe_text("test_setup_code") or "").replace("\r\n", "\n")
    mentioned = "\n".join([*tests, setup])
    names = [name for name in definitions(row.text("code").replace("\r\n", "\n")) if name in mentioned]
    if not tests or not names:
        raise RowError("no_tests", "column 'test_list' calls nothing that column 'code' defines")
    gold = "\n".join([setup, *tests]).strip()
    meta = {"tests": tests, "setup": setup, "names": names}
    return Item("mbpp", str(row.integer("task_id")), question, gold, kind="code", meta=meta, **turns)


def read(row: Row) -> Item:
    """Return one row as an item with the 3-shot prompt; raises RowError."""
    return _item(row, FEW_SHOT + _asked(row.text("text"), row.texts("test_list")))


def read_zero_shot(row: Row) -> Item:
    """Return one row as an item that asks for a fenced block; raises RowError."""
    tests = "\n".join(row.texts("test_list"))
    request = "Your program must pass these tests:"
    answer = "Give the program, with the imports it needs, in one ```python block."
    return _item(row, f"{row.text('text').strip()}\n\n{request}\n{tests}\n\n{answer}")


def read_instruct(row: Row) -> Item:
    """Return one row as an item behind three solved ones in turns, the answer begun; raises RowError."""
    question = _instructed(row.text("text"), row.texts("test_list"))
    return _item(row, question, shots=INSTRUCT_SHOTS, answer_prefix=_BEGUN)


def program(item: Item, response: Response) -> ExtractedProgram:
    """Return the program a response gives: up to [DONE], the last block in it or the whole text."""
    text, done, _ = response.text.partition(_DONE)
    reason = "stop" if done else response.finish_reason
    answer = extract_code(text.rpartition(_BEGIN)[2], reason, thinking=response.thinking)
    return _program(answer)


def _program(answer: CodeAnswer) -> ExtractedProgram:
    # Annotations from typing without the import are as common as they are harmless.
    return ExtractedProgram(
        answer, None if answer.code is None else Program(answer.code, prelude="from typing import *")
    )


def program_instruct(item: Item, response: Response) -> ExtractedProgram:
    """Return the response up to its first fence, as the harness with the release's patch reads it."""
    code, fence, _ = response.text.partition(_FENCE)
    if not fence:
        return ExtractedProgram(CodeAnswer(None, "cut_off" if response.finish_reason == "length" else "none"), None)
    # Where the model names a language itself, its line is no code; the first word of a line of code is.
    if named := _LANGUAGE.match(code):
        code = code[named.end() :]
    code = code.removeprefix("\n").removesuffix("\n")
    return _program(CodeAnswer(code, "block") if code.strip() else CodeAnswer(None, "none"))


def test(item: Item, solution: Program, sandbox: Sandbox) -> CodeResult:
    """Run the three assertions on the solution."""
    names, tests = texts(item.meta, "names"), texts(item.meta, "tests")
    return run_python_tests(sandbox, solution, names, item.meta["setup"], tests, SECONDS)


def examples(item: Item) -> list[str]:
    """Return the calls in the assertions, expected values left out and the last assertion held out."""
    names = texts(item.meta, "names")
    return [call for test in texts(item.meta, "tests")[:-1] for call in calls_of(test, names)]


def observe(item: Item, solution: Program, sandbox: Sandbox) -> Observation:
    """Return what the solution answers on the example calls."""
    return observe_calls(sandbox, solution, examples(item), SECONDS, setup=item.meta["setup"])


TASK = CodeTask(program, test, observe)

MBPP = Benchmark(
    name="mbpp",
    title="MBPP",
    group="code",
    place=14,
    suites=("mean of 7", "CoMAS mean of 7"),
    code=TASK,
    hub_id="google-research-datasets/mbpp",
    config="full",
    split="test",
    rows=500,
    columns=("task_id", "text", "code", "test_list", "test_setup_code", "challenge_test_list"),
    licence="CC BY 4.0",
    read=read,
    optional=frozenset({"test_setup_code", "challenge_test_list"}),
    prompt_style="plain",
)

MBPP_ZERO_SHOT = replace(
    MBPP, name="mbpp_zero_shot", title="MBPP zero-shot", place=15, suites=(), form_of="mbpp", read=read_zero_shot
)

MBPP_INSTRUCT = replace(
    MBPP_ZERO_SHOT,
    name="mbpp_instruct",
    title="MBPP instruct",
    code=CodeTask(program_instruct, test, observe),
    read=read_instruct,
)
