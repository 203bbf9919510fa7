"""HumanEval, MBPP and LiveCodeBench from files in the official schema, rows of our own making, graded by running."""

from __future__ import annotations

import base64
import json
import os
import pickle
import zlib
from pathlib import Path
from typing import Any

import pytest

from eval_suite.items import Item, Response
from eval_suite.sandbox import Sandbox, grade_code, open_sandbox
from eval_suite.sandbox.code_task import CodeGrade, CodeTask
from eval_suite.tasks import BENCHMARKS, humaneval, livecodebench, mbpp
from mmcorl.data.row_parsing import RowError
from mmcorl.errors import UserError


@pytest.fixture(scope="module")
def sandbox() -> Sandbox:
    return open_sandbox(run_code=True)


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    """Rows as a JSON Lines file."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def code_task(item: Item) -> CodeTask:
    """How programs of the item's benchmark run."""
    task = BENCHMARKS[item.benchmark].code
    assert task is not None
    return task


def grade(item: Item, text: str, sandbox: Sandbox, finish: Any = "unknown") -> CodeGrade:
    """The grade of one text."""
    return grade_code(code_task(item), item, Response(item.benchmark, item.id, 0, text, finish), sandbox)


def block(code: str) -> str:
    """Code as a chat model gives it."""
    return f"Here it is:\n```python\n{code}\n```\nIt works."


# -- HumanEval: a plain problem with examples, one whose tests need a helper of the prompt (as 32, 38, 50), one
# whose examples are not a session (as those of 65 of the 164).
HUMANEVAL_ROWS = [
    {
        "task_id": "HumanEval/0",
        "prompt": 'from typing import List\n\n\ndef total(xs: List[int]) -> int:\n    """Add up.\n'
        "    >>> total([1, 2])\n    3\n    >>> total(\n    ...     [])\n    0\n"
        '    >>> sorted([2, 1])\n    [1, 2]\n    """\n',
        "canonical_solution": "    return sum(xs)\n",
        "test": "\n\nMETADATA = {}\n\n\ndef check(candidate):\n    assert candidate([1, 2, 3]) == 6\n"
        "    assert candidate([]) == 0\n\n",
        "entry_point": "total",
    },
    {
        "task_id": "HumanEval/1",
        "prompt": 'def shift(s: str):\n    """rotate left"""\n    return s[1:] + s[:1]\n\n\ndef unshift(s: str):\n'
        '    """undo shift"""\n',
        "canonical_solution": "    return shift(s) if len(s) == 2 else s[-1:] + s[:-1]\n",
        "test": "def check(candidate):\n    for word in ('ab', 'abc', ''):\n"
        "        assert candidate(shift(word)) == word\n",
        "entry_point": "unshift",
    },
    {
        "task_id": "HumanEval/2",
        "prompt": 'def half(x):\n    """half(4) => 2.0"""\n',
        "canonical_solution": "    return x / 2\n",
        "test": "def check(candidate):\n    assert abs(candidate(3) - 1.5) < 1e-6\n",
        "entry_point": "half",
    },
]


@pytest.fixture
def chat(tmp_path: Path) -> tuple[Item, ...]:
    return humaneval.HUMANEVAL.load(write(tmp_path / "he.jsonl", HUMANEVAL_ROWS)).items


@pytest.fixture
def completion(tmp_path: Path) -> tuple[Item, ...]:
    return humaneval.HUMANEVAL_COMPLETION.load(write(tmp_path / "he.jsonl", HUMANEVAL_ROWS)).items


def test_humaneval_asks_for_a_block_or_for_the_rest(chat, completion):
    assert [item.id for item in chat] == ["HumanEval/0", "HumanEval/1", "HumanEval/2"]
    assert {item.kind for item in (*chat, *completion)} == {"code"}
    assert "one ```python block" in chat[0].question
    assert HUMANEVAL_ROWS[0]["prompt"].strip("\n") in chat[0].question
    assert completion[0].question == HUMANEVAL_ROWS[0]["prompt"]
    assert "total([1, 2])" in completion[0].question


def test_humaneval_says_when_a_copy_is_not_whole(tmp_path):
    loaded = humaneval.HUMANEVAL.load(write(tmp_path / "he.jsonl", HUMANEVAL_ROWS))
    assert loaded.notes == ("partial: 3 of 164 rows",)
    assert loaded.schema_hash == humaneval.HUMANEVAL.schema_hash


@pytest.mark.parametrize("number", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 2))])
def test_humaneval_takes_the_function_in_every_form(number, chat, completion, sandbox):
    row = HUMANEVAL_ROWS[number]
    body = row["canonical_solution"]
    for item in (chat[number], completion[number]):
        for text in (
            block(row["prompt"] + body),  # the whole function in a block
            block(body),  # the body alone in a block
            row["prompt"] + body,  # the whole function, no block
            body,  # a continuation
            body + "\n\ndef main():\n    print(unfinished",  # a continuation that goes on: cut at the stops
            body + "\nprint(total([1]))",
        ):
            graded = grade(item, text, sandbox)
            assert graded.verdict.correct, (text, graded)
            assert (graded.verdict.stage, graded.verdict.rule, graded.verdict.committed) == ("rule", True, True)
            assert graded.result is not None
            assert [test.outcome for test in graded.result.tests] == ["passed"]


def test_humaneval_solutions_may_use_the_prompts_helpers_and_need_not_repeat_them(chat, sandbox):
    code = "def unshift(s):\n    return shift(s) if len(s) == 2 else s[-1:] + s[:-1]"
    assert grade(chat[1], block(code), sandbox).verdict.correct
    # A helper of its own does not change the tests' helper.
    assert not grade(chat[1], block("def shift(s): return s\ndef unshift(s): return s"), sandbox).verdict.correct


@pytest.mark.parametrize(
    ("text", "stage", "reason"),
    [
        (block("def total(xs): return 0"), "rule", "test 1 of 1: wrong (AssertionError)"),
        (block("def total(xs): return xs[9]"), "rule", "test 1 of 1: error (IndexError: list index out of range)"),
        (block("def total(xs: return"), "rule", "test 1 of 1: error (while loading: SyntaxError"),
        (block("def other(xs): return sum(xs)"), "rule", "test 1 of 1: wrong"),
        ("I do not know.", "no_answer", "no program"),
        ("Yes", "no_answer", "no program"),
        ("", "no_answer", "no program"),
        ("```python\ndef total(xs): return sum(xs)", "no_answer", "cut off before"),
        (
            block("def total(xs): return sum(xs)") + "\nor\n" + block("def total(xs): return 1"),
            "rule",
            "test 1 of 1: wrong (AssertionError)",
        ),
    ],
)
def test_humaneval_refuses_what_does_not_solve_it(text, stage, reason, chat, sandbox):
    verdict = grade(chat[0], text, sandbox).verdict
    assert (verdict.correct, verdict.rule, verdict.stage) == (False, False, stage)
    assert verdict.reason.startswith(reason)
    assert verdict.committed == (stage == "rule")
    assert verdict.cut_off == reason.startswith("cut off")


def test_a_continuation_that_hit_the_limit_before_any_stop_is_cut_off(completion, sandbox):
    body = "    return sum(xs)\n"
    assert grade(completion[0], body, sandbox, "length").verdict.cut_off
    assert grade(completion[0], body + "\ndef x():\n  retu", sandbox, "length").verdict.correct
    assert grade(completion[0], body, sandbox, "stop").verdict.correct


def test_humaneval_examples_are_the_docstrings_calls_without_their_values(chat):
    assert humaneval.examples(chat[0]) == ["total([1, 2])", "total([])"]
    assert humaneval.examples(chat[1]) == []
    assert humaneval.examples(chat[2]) == ["half(4)"]


def test_a_response_to_another_item_is_never_graded(chat, sandbox):
    with pytest.raises(ValueError, match="graded as"):
        grade_code(code_task(chat[0]), chat[0], Response("humaneval", "HumanEval/1", 0, ""), sandbox)


# -- MBPP: a plain problem, one named like a builtin (as 126), one whose set-up needs a class (as 367).
MBPP_ROWS = [
    {
        "task_id": 11,
        "text": "Write a function to add two numbers.",
        "code": "def helper(x):\r\n  return x\r\ndef add(a, b):\r\n  return helper(a) + b",
        "test_list": ["assert add(1, 2) == 3", "assert set([add(2, 2)]) == set([4])", "assert add(0, 0)==0"],
        "test_setup_code": "",
        "challenge_test_list": [],
    },
    {
        "task_id": 12,
        "text": "Write a function for the sum of squares.",
        "code": "def sum(a, b): return a * a + b * b",
        "test_list": ["assert sum(1, 2) == 5", "assert sum(0, 2) == 4", "assert sum(3, 4) == 25"],
        "test_setup_code": "",
        "challenge_test_list": [],
    },
    {
        "task_id": 13,
        "text": "Write a function for the depth of a chain.",
        "code": "class Node:\n  def __init__(self, v):\n    self.v = v\n    self.next = None\n"
        "def depth(n):\n  return 0 if n is None else 1 + depth(n.next)",
        "test_list": ["assert depth(root) == 2", "assert depth(None) == 0", "assert depth(root.next) == 1"],
        "test_setup_code": "root = Node(1)\r\nroot.next = Node(2)",
        "challenge_test_list": [],
    },
]


@pytest.fixture
def shots(tmp_path: Path) -> tuple[Item, ...]:
    return mbpp.MBPP.load(write(tmp_path / "mbpp.jsonl", MBPP_ROWS)).items


def test_humaneval_examples_in_any_form_are_read():
    for shown, calls in [
        ("f('a)b', {'k': (1, -2)}) ➞ 3", ["f('a)b', {'k': (1, -2)})"]),  # brackets within the arguments
        ("f([1,\n       2], 3) == [(0, 0)]", ["f([1, 2], 3)"]),  # over two lines
        ("f(1) is 2, and f(1) again; f(n = 4) --> 5", ["f(1)", "f(n=4)"]),  # each once
        ("f(a) => False, f() and f(1", []),  # no literal, no argument, no end
        ("self.f(1), half(2), of(3)", []),  # other functions
        ("f(" + "(" * 3000 + "1)", []),
    ]:
        meta = {"prompt": f'def f(x):\n    """{shown}"""\n', "entry_point": "f"}
        assert humaneval.examples(Item("humaneval", "0", "", "", kind="code", meta=meta)) == calls, shown


def test_mbpp_shows_three_examples_then_the_task(shots, tmp_path):
    question = shots[0].question
    assert [item.id for item in shots] == ["11", "12", "13"]
    assert question.count("You are an expert Python programmer") == 4
    assert (question.count("[BEGIN]"), question.count("[DONE]")) == (4, 3)
    assert question.endswith(
        "Your code should pass these tests:\n\nassert add(1, 2) == 3\nassert set([add(2, 2)]) == set([4])\n"
        "assert add(0, 0)==0\n[BEGIN]\n"
    )
    zero = mbpp.MBPP_ZERO_SHOT.load(write(tmp_path / "zero.jsonl", MBPP_ROWS)).items[0]
    assert zero.question.startswith("Write a function to add two numbers.\n\n")
    assert "similar_elements" not in zero.question
    assert (zero.benchmark, zero.gold) == ("mbpp_zero_shot", shots[0].gold)


@pytest.mark.parametrize("number", [2, *(pytest.param(n, marks=pytest.mark.slow) for n in (0, 1))])
def test_mbpp_takes_the_program_in_every_form(number, shots, sandbox):
    item = shots[number]
    code = str(MBPP_ROWS[number]["code"])
    for text in (
        f"{code}\n[DONE]\n\nYou are an expert Python programmer, and here is your task: ...\n[BEGIN]\ndef x(",
        f"[BEGIN]\n{code}\n[DONE]",
        f"```python\n{code}\n```\n[DONE]",
        f"```python\n{code}\n[DONE]",
        block(code),
        code,
    ):
        graded = grade(item, text, sandbox)
        assert graded.verdict.correct, (text, graded)
        assert graded.result is not None
        assert [test.outcome for test in graded.result.tests] == ["passed"] * 3
        assert graded.verdict.reason == "3 of 3 tests passed"


def test_mbpp_reports_each_assertion(shots, sandbox):
    graded = grade(shots[0], block("def add(a, b):\n  if a == 2: raise KeyError(a)\n  return 3"), sandbox)
    assert graded.result is not None
    assert [test.outcome for test in graded.result.tests] == ["passed", "error", "wrong"]
    assert not graded.verdict.correct


def test_mbpp_holds_the_last_assertion_out_of_the_vote(shots):
    assert mbpp.examples(shots[0]) == ["add(1, 2)", "add(2, 2)"]
    assert mbpp.examples(shots[2]) == ["depth(root)", "depth(None)"]


def test_mbpp_rows_without_tests_are_refused(tmp_path):
    row = {**MBPP_ROWS[0], "test_list": ["assert other(1) == 1"]}
    with pytest.raises(UserError, match="calls nothing that column 'code' defines"):
        mbpp.MBPP.load(write(tmp_path / "bad.jsonl", [row]))


# -- LiveCodeBench: one problem for stdin with packed private tests, one functional with plain ones.


def packed(tests: list[dict[str, str]]) -> str:
    """Private tests as the data set packs them."""
    return base64.b64encode(zlib.compress(pickle.dumps(json.dumps(tests)))).decode()


def lcb_row(**changes: Any) -> dict[str, Any]:
    """A problem that reads stdin."""
    row = {
        "question_title": "Double",
        "question_content": "Print twice the number.",
        "platform": "atcoder",
        "question_id": "abc100_a",
        "contest_id": "abc100",
        "contest_date": "2024-01-01T00:00:00",
        "starter_code": "",
        "difficulty": "easy",
        "public_test_cases": json.dumps([{"input": "2\n", "output": "4\n", "testtype": "stdin"}]),
        "private_test_cases": packed(
            [
                {"input": "5\n", "output": "10.0", "testtype": "stdin"},
                {"input": "-1", "output": "-2", "testtype": "stdin"},
            ]
        ),
        "metadata": "{}",
    }
    return {**row, **changes}


def functional_row() -> dict[str, Any]:
    """A problem with a method to call."""
    return lcb_row(
        question_id="3000",
        platform="leetcode",
        difficulty="hard",
        starter_code="class Solution:\n    def pair(self, xs: List[int], k: int) -> List[int]:\n        ",
        public_test_cases=json.dumps([{"input": "[1, 2]\n3", "output": "[3, 6]", "testtype": "functional"}]),
        private_test_cases=json.dumps([{"input": "[]\n1", "output": "[]", "testtype": "functional"}]),
        metadata=json.dumps({"func_name": "pair"}),
    )


@pytest.fixture
def problems(tmp_path: Path) -> tuple[Item, ...]:
    write(tmp_path / "test.jsonl", [lcb_row()])
    write(tmp_path / "test2.jsonl", [functional_row()])
    write(tmp_path / "test10.jsonl", [lcb_row(question_id="later")])
    return livecodebench.LIVECODEBENCH.load(tmp_path).items


def test_livecodebench_reads_its_files_in_the_order_of_its_releases(problems, tmp_path):
    assert [item.id for item in problems] == ["abc100_a", "3000", "later"]
    loaded = livecodebench.LIVECODEBENCH.load(tmp_path, limit=2)
    assert len(loaded.items) == 2
    assert loaded.notes == ("partial: 3 of 1055 rows", "limited: the first 2 of 3 rows")
    assert loaded.schema_hash == livecodebench.LIVECODEBENCH.schema_hash
    assert livecodebench.LIVECODEBENCH.sub_scores(problems, {"abc100_a": 1.0, "3000": 0.0, "later": 1.0}) == {
        "difficulty": {
            "easy": {"n": 2, "correct": 2, "accuracy": 1.0},
            "hard": {"n": 1, "correct": 0, "accuracy": 0.0},
        },
        "platform": {
            "atcoder": {"n": 2, "correct": 2, "accuracy": 1.0},
            "leetcode": {"n": 1, "correct": 0, "accuracy": 0.0},
        },
    }


def test_livecodebench_items_hold_no_tests_but_their_digest(problems):
    text = json.dumps([item.meta for item in problems]) + problems[0].question
    assert "testtype" not in text
    assert len(problems[0].gold) == 64
    assert problems[0].gold == problems[2].gold != problems[1].gold
    assert "stdin" in problems[0].question
    assert "class Solution" in problems[1].question


def test_livecodebench_programs_print_their_answers(problems, sandbox):
    for code, outcomes in [
        ("print(2 * int(input()))", ["passed"] * 3),
        ("import sys\nfor line in sys.stdin: print(f'{2 * int(line)}.00')", ["passed"] * 3),
        ("print(4)", ["passed", "wrong"]),
        ("n = int(input())\nprint(2 * n if n > 0 else 1 // 0)", ["passed", "passed", "error"]),
        ("print(sqrt(4 * int(input()) ** 2).__int__() * 1)", ["passed", "passed", "wrong"]),  # names without imports
    ]:
        graded = grade(problems[0], block(code), sandbox)
        assert graded.result is not None
        assert [test.outcome for test in graded.result.tests] == outcomes
        assert graded.verdict.correct == (outcomes == ["passed"] * 3)
        assert graded.result.total == 3


def test_livecodebench_functions_return_their_answers(problems, sandbox):
    for code, outcomes in [
        ("class Solution:\n    def pair(self, xs: List[int], k: int): return [x * k for x in xs]", ["passed"] * 2),
        ("class Solution:\n    def pair(self, xs, k): return tuple(float(x * k) for x in xs)", ["passed"] * 2),
        ("def pair(xs, k): return [x * k for x in xs]", ["passed"] * 2),
        ("class Solution:\n    def pair(self, xs, k): return [3, 6]", ["passed", "wrong"]),
        ("class Solution:\n    def other(self): pass", ["error"]),
        ("class Solution:\n    def pair(self, xs, k): return map(str, xs)", ["error"]),
    ]:
        graded = grade(problems[1], block(code), sandbox)
        assert graded.result is not None
        assert [test.outcome for test in graded.result.tests] == outcomes


def test_livecodebench_vote_uses_the_public_inputs_only(problems, sandbox):
    task = livecodebench.TASK
    for item, code, outputs in (
        (problems[0], "print(2 * int(input()))", ("4",)),
        (problems[1], "def pair(xs, k): return xs", ("[1,2]",)),
    ):
        program = task.read(item, Response(item.benchmark, item.id, 0, block(code))).program
        assert program is not None
        assert task.observe(item, program, sandbox).outputs == outputs


def test_livecodebench_tests_that_changed_or_went_are_refused(problems, tmp_path, sandbox):
    write(tmp_path / "test.jsonl", [lcb_row(public_test_cases="[]")])
    with pytest.raises(UserError, match="are not those the item was made with"):
        grade(problems[0], block("print(1)"), sandbox)
    (tmp_path / "test.jsonl").unlink()
    with pytest.raises(UserError, match="cannot be read from"):
        grade(problems[0], block("print(1)"), sandbox)


def test_livecodebench_inputs_that_are_no_json_are_refused(tmp_path, sandbox):
    bad = json.dumps([{"input": "[1, 2", "output": "1", "testtype": "functional"}])
    write(tmp_path / "test.jsonl", [{**functional_row(), "public_test_cases": bad}])
    (item,) = livecodebench.LIVECODEBENCH.load(tmp_path).items
    response = Response(item.benchmark, item.id, 0, block("def pair(xs, k): return xs"))
    program = livecodebench.TASK.read(item, response).program
    assert program is not None
    for use in (livecodebench.TASK.test, livecodebench.TASK.observe):
        with pytest.raises(UserError, match="is no JSON"):
            use(item, program, sandbox)
    write(tmp_path / "test.jsonl", [lcb_row(metadata="[]")])
    (item,) = livecodebench.LIVECODEBENCH.load(tmp_path).items
    with pytest.raises(UserError, match="column 'metadata' is no JSON object"):
        livecodebench.stored_tests(item)


class _Harm:
    """What a hostile pickle looks like."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, ("harm",)


def test_a_pickle_that_names_a_function_is_refused_and_not_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    stored = base64.b64encode(zlib.compress(pickle.dumps(_Harm()))).decode()
    with pytest.raises(RowError, match="and it may hold only text"):
        livecodebench.private_tests(stored)
    assert not (tmp_path / "harm").exists()


def test_broken_private_tests_are_refused_in_a_sentence():
    for stored in (
        "",
        "!!!",
        base64.b64encode(b"not zlib").decode(),
        base64.b64encode(zlib.compress(b"not a pickle")).decode(),
        base64.b64encode(zlib.compress(pickle.dumps(5))).decode(),
        base64.b64encode(zlib.compress(pickle.dumps("not json"))).decode(),
        base64.b64encode(zlib.compress(b"\x80\x04\x95")).decode(),
        base64.b64encode(zlib.compress(b"(((((.")).decode(),
        base64.b64encode(zlib.compress(b"\x80\x04h\x00.")).decode(),
        # A place in the memo of 2**31 entries, for which an unpickler allocates 32 GB; a list of texts; two texts.
        base64.b64encode(zlib.compress(b"\x80\x04\x8c\x02[]r\xff\xff\xff\x7f.")).decode(),
        base64.b64encode(zlib.compress(pickle.dumps(["[]"]))).decode(),
        base64.b64encode(zlib.compress(b"\x80\x04\x8c\x02[]\x8c\x02[].")).decode(),
        base64.b64encode(zlib.compress(pickle.dumps("[" * 100_000))).decode(),
        "[" * 100_000,
    ):
        with pytest.raises(RowError, match="column 'private_test_cases'"):
            livecodebench.private_tests(stored)


def test_livecodebench_copies_that_cannot_be_are_refused(tmp_path):
    with pytest.raises(UserError, match=r"holds no test\*.jsonl file"):
        livecodebench.LIVECODEBENCH.load(tmp_path)
    path = write(tmp_path / "test.jsonl", [lcb_row(), lcb_row()])
    with pytest.raises(UserError, match="twice"):
        livecodebench.LIVECODEBENCH.load(path)
    (tmp_path / "test7.jsonl").mkdir()
    with pytest.raises(UserError, match="cannot be read"):
        livecodebench.LIVECODEBENCH.load(tmp_path / "test7*")
    path.write_text("[" * 100_000 + "\n")
    with pytest.raises(UserError, match="is no JSON"):
        livecodebench.LIVECODEBENCH.load(path)
    path.write_text("{broken\n")
    with pytest.raises(UserError, match="is no JSON"):
        livecodebench.LIVECODEBENCH.load(path)
    row = lcb_row()
    del row["question_content"]
    with pytest.raises(UserError, match="question_content"):
        livecodebench.LIVECODEBENCH.load(write(path, [row]))
    with pytest.raises(UserError, match="revision"):
        livecodebench.LIVECODEBENCH.load(path, revision="main")
