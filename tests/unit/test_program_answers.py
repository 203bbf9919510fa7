"""Coding problems in training: the inputs in their tests, what programs answer to them, how these answers vote."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from fractions import Fraction

import pytest

from doubles import labels_of
from mmcorl.answers import open_relation
from mmcorl.answers.outputs import is_outputs, outputs_answer
from mmcorl.config import parse
from mmcorl.errors import UserError
from mmcorl.interactions.base import request, start_conversations
from mmcorl.labels.supervision import Supervision
from mmcorl.prompts import discussion as prompts
from mmcorl.rewards import Reward
from mmcorl.sandbox.calls import calls_under_test, functions_under_test
from mmcorl.sandbox.process import Sandbox, open_sandbox
from mmcorl.sandbox.program_answers import program_answers
from mmcorl.types import Completion, Group, Prompt

CALLS = ("add(1, 2)", "add(-1, b=1)", "add('a', 1)")
ADD = "def add(a, b):\n    return a + b"
ADD_TOO = "def add(a, b):\n    # the same in another way\n    b += a\n    return b"
SUBTRACT = "def add(a, b): return a - b"


@pytest.fixture(scope="module")
def sandbox() -> Sandbox:
    return open_sandbox(run_code=True)


def written(program: str) -> Completion:
    """A response that thinks aloud, drafts, and commits to a program."""
    text = f"Let me see.\n```python\ndef add(a, b): return None\n```\nBetter:\n```python\n{program}\n```\n"
    return Completion(text, None, 9, "stop")


def answer_to(*outputs: str) -> str:
    """The answer of a program with these outputs, the digest made here."""
    return f"outputs {hashlib.sha256(json.dumps(outputs).encode()).hexdigest()[:16]}: {', '.join(outputs)}"


@pytest.mark.parametrize(
    ("tests", "names", "calls"),
    [
        # KodCode: what it imports from `solution`, wherever it stands; expected values are not read.
        (
            "from solution import add\nimport pytest\n\ndef test_add():\n    assert add(1, 2) == 3\n"
            "    result = add(-1, b=1)\n    assert result == 0\n    with pytest.raises(TypeError):\n"
            "        add('a', 1)\n    x = [1]\n    assert add(x, x) == [1, 1]\n    assert add(1, 2) != 4\n",
            ["add"],
            CALLS,
        ),
        # CoMAS: no import, and the tests are called at the end.
        (
            "def test_one():\n    assert f([17], 17) == 0  # Same\n\ndef test_two():\n    assert not g({'k': 1})\n"
            "    assert g(2)\n    assert len(f([1], 2)) == 1\n\ntest_one()\ntest_two()",
            ["f", "g"],
            ("f([17], 17)", "g({'k': 1})", "g(2)", "f([1], 2)"),
        ),
        ("def test():\n    assert len('ab') == 2\n    assert helper(1) == 1\ndef helper(x): return x", [], ()),
        ("assert f(x) == 1\nassert f(open('/etc/passwd')) == 2", ["f"], ()),
        ("not python", [], ()),
        ("(" * 100_000, [], ()),
    ],
)
def test_the_inputs_of_a_problem_are_the_calls_in_its_tests(tests, names, calls):
    assert functions_under_test(tests) == names
    assert calls_under_test(tests) == calls


def test_a_program_answers_with_what_it_returns(sandbox):
    programs = {
        ADD: answer_to("3", "0", "!TypeError"),
        ADD_TOO: answer_to("3", "0", "!TypeError"),
        SUBTRACT: answer_to("-1", "-2", "!TypeError"),
        # Printing is not returning, and what is printed is no answer.
        "def add(a, b): print(a + b)": answer_to("null", "null", "!TypeError"),
        # Fails on every input, does not load, is not there, is none.
        "def add(a, b): return 1 / 0": None,
        "import no_such_module\n" + ADD: None,
        "def plus(a, b): return a + b": None,
        "Add both.": None,
        # Objects of its own say nothing: all that define such a class would agree.
        "class Sum: pass\ndef add(a, b): return Sum()": None,
        # Hostile: leaves after the first answer, kills, floods, reads, and pretends to be another type.
        "import os\ndef add(a, b): return 3 if b == 2 else os._exit(0)": None,
        "import os, signal\ndef add(a, b): os.kill(os.getppid(), signal.SIGKILL); os.kill(os.getpid(), 9)": None,
        "def add(a, b): return 'x' * (1 << 33)": None,
        "def add(a, b): return open('/etc/passwd').read()": None,
        "class Int(int):\n    def __eq__(self, o): return True\n    def __repr__(self): return '3'\n"
        "def add(a, b): return Int(7)": answer_to("7", "7", "7"),
    }
    found = program_answers(sandbox, CALLS, [written(program) for program in programs])
    assert dict(zip(programs, found, strict=True)) == programs
    assert program_answers(sandbox, CALLS, [Completion("A sum is easy.", None, 4, "stop")]) == [None]


@pytest.mark.slow  # five seconds of processor time
def test_a_program_that_does_not_end_has_no_vote(sandbox):
    endless = "def add(a, b):\n    while b == 1: pass\n    return a + b"
    first, second = program_answers(sandbox, CALLS, [written(endless), written(ADD)])
    assert (first, second) == (None, answer_to("3", "0", "!TypeError"))


def test_programs_vote_by_what_they_do_and_are_rewarded_by_the_peers_vote(sandbox):
    problems = [Prompt("code", "code", "Add.", calls=CALLS), Prompt("math", "math", "1/2 + 1/4?", gold="3/4")]
    programs = {
        "a": [ADD, SUBTRACT, "import os\nos._exit(0)", ADD_TOO],  # its vote: adding, 2 of 3
        "b": [SUBTRACT, SUBTRACT, ADD_TOO, "def add(a, b): return None"],  # subtracting, 2 of 4
    }
    sums = {"a": ["0.75", "1", "3/4", None], "b": [r"\frac{3}{4}", "0.75", "2", "2"]}
    groups = []
    for agent, written_by in programs.items():
        completions = [written(program) for program in written_by]
        answers = program_answers(sandbox, CALLS, completions)
        groups.append(
            [
                Group("code", tuple(replace(one, answer=each) for one, each in zip(completions, answers, strict=True))),
                Group("math", tuple(Completion("", answer, 1, "stop") for answer in sums[agent])),
            ]
        )
    with open_relation() as relation:
        labels = labels_of(Supervision("ring", ["a", "b"], relation=relation), groups, problems)
        rewards = [Reward(relation)(own, row, problems) for own, row in zip(groups, labels.labels, strict=True)]
    votes = [[(vote.support, vote.unparsed) for vote in row] for row in labels.votes]
    assert votes == [[(2, 1), (2, 1)], [(2, 0), (2, 0)]]
    assert [row[0].answer for row in labels.labels] == [
        answer_to("-1", "-2", "!TypeError"),
        answer_to("3", "0", "!TypeError"),
    ]
    # a is rewarded for subtracting and for the value 3/4; b for adding and for 3/4.
    assert rewards == [
        {"code": (0.0, 1.0, 0.0, 0.0), "math": (1.0, 0.0, 1.0, 0.0)},
        {"code": (0.0, 0.0, 1.0, 0.0), "math": (1.0, 1.0, 0.0, 0.0)},
    ]


def test_of_a_conversation_only_solutions_are_programs():
    (talk,) = start_conversations([Prompt("code", "code", "Add.", calls=CALLS)], 1)
    for role, calls in (("solver", CALLS), ("evaluator", None), ("scorer", None)):
        assert request(talk, 1, role, 0, prompts.solve, limit=9).prompt.calls == calls


@pytest.mark.parametrize("vote_by", ["values", "strings"])
def test_no_relation_looks_into_what_programs_answer(vote_by):
    half, decimal, long = outputs_answer(["1/2"]), outputs_answer(["0.5"]), outputs_answer([str(Fraction(1, 7))] * 99)
    with open_relation("math", vote_by) as relation:
        assert relation.classes([half, decimal, None, half, long]) == [0, 1, None, 0, 2]
        assert not relation.same(half, decimal)
        assert relation.same(half, outputs_answer(["1/2"]))
    assert len(long) < 130
    odd = outputs_answer(["\ud800\x00", "é\n"])
    assert odd.endswith(": ??, é")
    assert odd != outputs_answer(["??", "é"])
    assert is_outputs(long)
    assert not is_outputs("outputs: 1/2")


def test_outputs_of_programs_are_told_apart_whatever_a_users_relation_says(tmp_path, monkeypatch):
    (tmp_path / "all_alike.py").write_text("def same(a, b):\n    return True\n")
    monkeypatch.syspath_prepend(tmp_path)
    one, other = outputs_answer(["1"]), outputs_answer(["2"])
    with open_relation("all_alike:same") as relation:
        assert relation.same("1", "2")
        assert relation.classes([one, other, one]) == [0, 1, 0]


def test_coding_problems_need_the_permission_to_run_programs():
    base = {"steps": 1, "agents": [{"name": "a", "model": "m"}], "supervision": {"kind": "self"}}
    code, words = {"source": "rows.jsonl", "recipe": "kodcode"}, {"source": "synthetic:text"}
    for data in ({"train": code}, {"train": words, "also": [{"source": "rows.jsonl", "columns": {"tests": "t"}}]}):
        with pytest.raises(UserError, match=r"coding problems.*answers\.run_code=true"):
            parse({**base, "data": data})
        parse({**base, "data": data, "answers": {"run_code": True}})
    held_out = {"sets": [{"name": "code", "data": code}]}
    with pytest.raises(UserError, match=r"validation set 'code' has coding problems"):
        parse({**base, "data": {"train": words}, "validation": held_out})
