"""HumanEval: write the body of a Python function from its signature and docstring.

Hub      openai/openai_humaneval, split test (164 rows).
Columns  task_id (`HumanEval/0`), prompt, canonical_solution, test (defines `check(candidate)`), entry_point.
Licence  MIT.
Metric   pass@1. One test per problem, `check`; it is run against the solution in another process.
Forms    `humaneval` asks for the whole function in a fenced block (chat); `humaneval_completion` shows the prompt
         alone, which a base model continues. Either kind of response is understood in both. `humaneval_instruct` is
         lm-evaluation-harness' task of that name (version 4): its words, an answer begun for the model up to the end of
         the prompt, and of the response the text up to a stop sequence or a fence. The harness stops sampling there, at
         1,024 tokens at most; here a response is cut when it is graded, and its budget is the protocol's.
Traps
- Tests of 32, 38 and 50 call helpers that only the prompt defines (`poly`, `encode_cyclic`, `encode_shift`); so do
  solutions of 38. The prompt therefore runs before the solution and before the tests.
- Base models write on after the function: a continuation ends at the published stop sequences.
- The official limit of 3 s includes starting Python on the authors' machine; here it is 10 s of CPU time for
  loading and testing (30 s of wall clock), so that a busy machine does not change scores.
"""

from __future__ import annotations

import re
from dataclasses import replace

from eval_suite.benchmarks.base import Benchmark, Row
from mmcorl.grading.code_task import CodeTask, ExtractedProgram
from mmcorl.grading.items import Item, Response
from mmcorl.sandbox.calls import literal_call
from mmcorl.sandbox.extract import CodeAnswer, definitions, extract_code, parses
from mmcorl.sandbox.process import Sandbox
from mmcorl.sandbox.run_tests import CodeResult, Observation, Program, observe_calls, run_python_tests

SECONDS = 10.0
STOPS = ("\nclass", "\ndef", "\n#", "\nif", "\nprint")
"""Where a continuation ends: the stop sequences of the data set's paper (Chen et al. 2021, section 3.1)."""

_REQUEST = (
    "Complete the following Python function. Give the whole function, with the imports it needs, in one ```python "
    "block.\n\n```python\n{prompt}\n```"
)


_INSTRUCT = (
    "Write a solution to the following problem and make sure that it passes the tests:\n```python\n{prompt}\n```\n"
)
_BEGUN = "Here is the completed function:\n```python\n{prompt}\n"


def _item(row: Row, question: str, answer_prefix: str = "") -> Item:
    meta = {"prompt": row.text("prompt"), "entry_point": row.text("entry_point").strip()}
    id, tests = row.text("task_id"), row.text("test")
    return Item("humaneval", id, question, tests, kind="code", meta=meta, answer_prefix=answer_prefix)


def read(row: Row) -> Item:
    """Return one row as an item that asks for a fenced block; raises RowError."""
    return _item(row, _REQUEST.format(prompt=row.text("prompt").strip("\n")))


def read_completion(row: Row) -> Item:
    """Return one row as an item that is to be continued; raises RowError."""
    return _item(row, row.text("prompt"))


def read_instruct(row: Row) -> Item:
    """Return one row as an item in the harness's words, the answer begun; raises RowError."""
    prompt = row.text("prompt")
    return _item(row, _INSTRUCT.format(prompt=prompt), _BEGUN.format(prompt=prompt))


def program(item: Item, response: Response) -> ExtractedProgram:
    """Return the function a response gives: whole in a block, or as a continuation of the prompt."""
    prompt, name = item.meta["prompt"], item.meta["entry_point"]
    answer = extract_code(response.text, response.finish_reason, thinking=response.thinking)
    if answer.code is None:
        draft = response.thinking and answer.source != "none"
        return ExtractedProgram(answer, None) if draft or "```" in response.text else _continuation(prompt, response)
    if name not in definitions(answer.code) and not parses(answer.code) and parses(prompt + answer.code):
        return ExtractedProgram(answer, Program(prompt + answer.code))
    return ExtractedProgram(answer, Program(answer.code, prelude=prompt))


def _continuation(prompt: str, response: Response) -> ExtractedProgram:
    text = response.text
    ends = [end for stop in STOPS if (end := text.find(stop)) >= 0]
    body = text[: min(ends)] if ends else text
    if not ends and response.finish_reason == "length":
        return ExtractedProgram(CodeAnswer(None, "cut_off"), None)
    # The body of a function is indented: prose is not, however much it looks like Python.
    first = body.strip("\r\n")[:1]
    if not body.strip() or first not in (" ", "\t") or not parses(prompt + body):
        return ExtractedProgram(CodeAnswer(None, "none"), None)
    return ExtractedProgram(CodeAnswer(body, "text"), Program(prompt + body))


def program_instruct(item: Item, response: Response) -> ExtractedProgram:
    """Return the prompt and the response up to its first stop sequence or fence, as the harness reads it."""
    body = response.text
    for end in (*STOPS, "```"):
        body = body.partition(end)[0]
    if not body.strip():
        return ExtractedProgram(CodeAnswer(None, "none"), None)
    return ExtractedProgram(CodeAnswer(body, "text"), Program(item.meta["prompt"] + body))


def test(item: Item, solution: Program, sandbox: Sandbox) -> CodeResult:
    """Run the problem's `check` on the solution."""
    name = item.meta["entry_point"]
    tests = [f"{item.gold}\n\ncheck({name})\n"]
    return run_python_tests(sandbox, solution, [name], item.meta["prompt"], tests, SECONDS)


def examples(item: Item) -> list[str]:
    """Return the calls of the function that the docstring shows, expected values left out.

    Calls whose arguments are literals, in whatever form the example is written (`>>> f(2)`, `f(2) == 4`,
    `f(2) ➞ 4`, `f(2) returns 4`): 141 of the 164 problems have one, 76 of them behind `>>>`.
    """
    # Without the marks of lines that go on in a session.
    prompt, name = re.sub(r"\n[ \t]*\.\.\.(?=[ \t])", "\n", item.meta["prompt"]), item.meta["entry_point"]
    starts = re.finditer(rf"(?<![\w.]){re.escape(name)}\(", prompt)
    calls = [literal_call(prompt[start.start() :]) for start in starts]
    return list(dict.fromkeys(call for call in calls if call is not None))


def observe(item: Item, solution: Program, sandbox: Sandbox) -> Observation:
    """Return what the solution answers on the docstring's examples."""
    return observe_calls(sandbox, solution, examples(item), SECONDS)


TASK = CodeTask(program, test, observe)

HUMANEVAL = Benchmark(
    name="humaneval",
    title="HumanEval",
    group="code",
    place=10,
    suites=("mean of 7", "CoMAS mean of 7"),
    code=TASK,
    hub_id="openai/openai_humaneval",
    split="test",
    rows=164,
    columns=("task_id", "prompt", "canonical_solution", "test", "entry_point"),
    licence="MIT",
    read=read,
    optional=frozenset({"canonical_solution"}),
    prompt_style="plain",
)

HUMANEVAL_COMPLETION = replace(
    HUMANEVAL,
    name="humaneval_completion",
    title="HumanEval completion",
    place=11,
    suites=(),
    form_of="humaneval",
    read=read_completion,
)

HUMANEVAL_INSTRUCT = replace(
    HUMANEVAL_COMPLETION,
    name="humaneval_instruct",
    title="HumanEval instruct",
    code=CodeTask(program_instruct, test, observe),
    read=read_instruct,
)
