"""Drafts and how they become one score: hand-made samples, the loophole among them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import pytest

from eval_suite.code import Sandbox, grade_code, open_sandbox
from eval_suite.comas import elect, majority_at_k, pass_at_k, sixth_call, sixth_prompt
from eval_suite.items import Item, Response
from mmcorl.answers import Equivalence
from mmcorl.errors import Refused


@pytest.fixture(scope="module")
def sandbox() -> Sandbox:
    return open_sandbox(run_code=True, allow_unsafe=True)


@pytest.fixture(scope="module")
def relation() -> Iterator[Equivalence]:
    with Equivalence() as found:
        yield found


def drafts(item: Item, texts: Sequence[str]) -> list[Response]:
    """Texts as samples of an item."""
    return [Response(item.benchmark, item.id, sample, text) for sample, text in enumerate(texts)]


MATH = Item("gsm8k", "1", "What is 1/2?", "1/2")
MCQ = Item("mmlu", "1", "Which?\nChoices:\n(A) 10\n(B) 20", "B", choices=("10", "20"))


def boxed_is(gold: str) -> Callable[[Response], bool]:
    """A grader for these tests: the box holds one text."""
    return lambda response: f"boxed{{{gold}}}" in response.text


def test_answers_that_mean_the_same_are_one_vote(relation):
    # 0.5, \frac12 and 1/2 are one answer with three votes; 2 has two; the third draft says nothing.
    samples = drafts(
        MATH, [r"\boxed{2}", r"\boxed{0.5}", "no idea", r"\boxed{\frac{1}{2}}", r"\boxed{1/2}", r"\boxed{2}"]
    )
    election = elect(MATH, samples, relation)
    assert (election.index, election.clusters, election.by) == (1, ((1, 3, 4), (0, 5)), "relation")


def test_a_tie_goes_to_the_answer_seen_first(relation):
    samples = drafts(MATH, [r"\boxed{3}", r"\boxed{2}", r"\boxed{2}", r"\boxed{3}", "?"])
    assert elect(MATH, samples, relation).index == 0


def test_letters_and_values_of_options_are_one_vote(relation):
    samples = drafts(MCQ, [r"\boxed{A}", r"\boxed{B}", r"\boxed{20}", r"\boxed{A}", r"\boxed{(B)}"])
    election = elect(MCQ, samples, relation)
    assert (election.index, election.clusters) == (1, ((1, 2, 4), (0, 3)))


def test_nothing_said_elects_nothing_and_is_incorrect(relation):
    samples = drafts(MATH, ["?"] * 5)
    assert elect(MATH, samples, relation).index is None
    told = majority_at_k(MATH, samples, lambda response: True, relation)
    assert (told.aggregation, told.correct, told.index, told.by) == ("maj@5", False, None, "nothing")


def test_every_score_names_its_aggregation(relation):
    # Two of five are right: a majority of three is wrong, some draft is right, the sixth text copies a wrong one.
    samples = drafts(MATH, [r"\boxed{1/2}", r"\boxed{7}", r"\boxed{7}", r"\boxed{1/2}", r"\boxed{7}"])
    right = boxed_is("1/2")
    told = [
        majority_at_k(MATH, samples, right, relation),
        pass_at_k(MATH, samples, right),
        sixth_call(MATH, Response("gsm8k", "1", 5, r"\boxed{7}"), right),
    ]
    assert [(one.aggregation, one.correct) for one in told] == [
        ("maj@5", False),
        ("pass@5", True),
        ("sixth_call", False),
    ]
    assert majority_at_k(MATH, samples[:3], right, relation).aggregation == "maj@3"


def test_the_sixth_call_reads_the_task_and_all_drafts():
    assert sixth_prompt("Add 1 and 1.", ["It is 2.", "3"]) == (
        "[Task]:\nAdd 1 and 1.\n\n[Solution 1]:\nIt is 2.\n\n[Solution 2]:\n3\n\nGiven the task and all the above "
        "solutions, reason over them carefully and provide a final answer to the task."
    )
    with pytest.raises(Refused, match="there are none"):
        sixth_prompt("Add.", [])


# -- code

HUMANEVAL = Item(
    "humaneval",
    "HumanEval/7",
    "...",
    "def check(candidate):\n    assert candidate(3) == 6\n    assert candidate(-3) == -6\n",
    kind="code",
    meta={"prompt": 'def double(x):\n    """Twice.\n    >>> double(2)\n    4\n    """\n', "entry_point": "double"},
)
SILENT = Item(
    "humaneval",
    "HumanEval/8",
    "...",
    HUMANEVAL.gold,
    kind="code",
    meta={"prompt": 'def double(x):\n    """double(2) is 4"""\n', "entry_point": "double"},
)
MBPP = Item(
    "mbpp",
    "20",
    "...",
    "...",
    kind="code",
    meta={
        "tests": ["assert inc(1) == 2", "assert inc(5) == 6", "assert inc(-1) == 0"],
        "setup": "",
        "names": ["inc"],
    },
)

RIGHT = "def double(x): return 2 * x"
RIGHT_TOO = "def double(y):\n    # the same\n    return y + y"
SQUARE = "def double(x): return x ** 2"  # 4 for the example 2: looks right on it
THREE = "def double(x): return 3 * x"
BROKEN = "def double(x): return 1 / 0"


def block(code: str) -> str:
    """Code as a draft."""
    return f"So:\n```python\n{code}\n```"


def graded(item: Item, sandbox: Sandbox) -> Callable[[Response], bool]:
    """The suite's own grade of a response."""
    return lambda response: grade_code(item, response, sandbox).verdict.correct


def test_programs_that_act_alike_are_one_vote(sandbox, relation):
    samples = drafts(HUMANEVAL, [block(code) for code in (THREE, RIGHT, THREE, RIGHT_TOO, RIGHT)])
    election = elect(HUMANEVAL, samples, relation, sandbox)
    # double(2) is 6 for drafts 0 and 2, 4 for 1, 3 and 4.
    assert (election.index, election.clusters, election.by) == (1, ((1, 3, 4), (0, 2)), "behaviour")
    told = majority_at_k(HUMANEVAL, samples, graded(HUMANEVAL, sandbox), relation, sandbox)
    assert (told.aggregation, told.correct, told.index, told.by) == ("maj@5", True, 1, "behaviour")


def test_only_public_examples_are_looked_at(sandbox, relation):
    # Squaring agrees with doubling on the example alone; being first it speaks for the cluster, and fails the tests.
    samples = drafts(HUMANEVAL, [block(code) for code in (SQUARE, RIGHT, RIGHT_TOO, THREE, BROKEN)])
    election = elect(HUMANEVAL, samples, relation, sandbox)
    assert (election.index, election.clusters) == (0, ((0, 1, 2), (3,)))
    assert not majority_at_k(HUMANEVAL, samples, graded(HUMANEVAL, sandbox), relation, sandbox).correct


def test_expected_values_play_no_part(sandbox, relation):
    # Four drafts say 6 where the docstring says 4: the vote follows the drafts.
    samples = drafts(HUMANEVAL, [block(code) for code in (RIGHT, THREE, THREE, THREE, THREE)])
    assert elect(HUMANEVAL, samples, relation, sandbox).index == 1


def test_a_program_that_runs_nowhere_has_no_vote_while_others_run(sandbox, relation):
    samples = drafts(HUMANEVAL, [block(BROKEN), block(BROKEN), block(BROKEN), "no code", block(RIGHT)])
    election = elect(HUMANEVAL, samples, relation, sandbox)
    assert (election.index, election.clusters, election.by) == (4, ((4,),), "behaviour")


@pytest.mark.parametrize("item", [SILENT, HUMANEVAL], ids=["no examples", "nothing runs"])
def test_where_nothing_runs_syntax_trees_vote(item, sandbox, relation):
    # Drafts 1 and 3 differ in layout and comments only. Without examples nothing can run.
    other = "def double(x):  # hm\n    return 1/0"
    samples = drafts(item, [block("def double(x): return x / 0"), block(BROKEN), block("def ("), block(other), "none"])
    election = elect(item, samples, relation, sandbox)
    assert (election.index, election.clusters, election.by) == (1, ((1, 3), (0,)), "syntax")


def test_no_program_at_all_elects_nothing(sandbox, relation):
    samples = drafts(HUMANEVAL, ["no", "", block("def ("), "```python\nopen", "?"])
    election = elect(HUMANEVAL, samples, relation, sandbox)
    assert (election.index, election.by) == (None, "nothing")


def test_mbpp_votes_on_all_but_the_last_assertion(sandbox, relation):
    # abs(x) + 1 and x + 1 agree on 1 and 5; they differ on the held-out -1, which the vote must not see.
    same, other = "def inc(x): return abs(x) + 1", "def inc(x): return x + 1"
    samples = drafts(
        MBPP, [block("def inc(x): return x"), block(same), block(other), block("def inc(x): return x - 1")]
    )
    election = elect(MBPP, samples, relation, sandbox)
    assert (election.index, election.clusters[0], election.by) == (1, (1, 2), "behaviour")
    assert majority_at_k(MBPP, samples, graded(MBPP, sandbox), relation, sandbox).correct is False
    assert pass_at_k(MBPP, samples, graded(MBPP, sandbox)).correct is True


def test_voting_on_code_is_off_unless_a_sandbox_is_given(relation):
    with pytest.raises(Refused, match="--run-code"):
        elect(HUMANEVAL, drafts(HUMANEVAL, [block(RIGHT)]), relation)


def test_a_sixth_text_that_quotes_the_drafts_is_one_program(sandbox):
    """The loophole: run until a block passes, such a text scores pass@5. Here its last block alone counts."""
    right = graded(HUMANEVAL, sandbox)
    quotes = [block(code) for code in (THREE, RIGHT, SQUARE, BROKEN, THREE)]
    assert pass_at_k(HUMANEVAL, drafts(HUMANEVAL, quotes), right).correct
    sixth = Response("humaneval", "HumanEval/7", 5, "The drafts were\n" + "\n".join(quotes))
    told = sixth_call(HUMANEVAL, sixth, right)
    assert (told.aggregation, told.correct) == ("sixth_call", False)
    # A text that quotes them and then decides is judged by what it decides.
    decided = Response("humaneval", "HumanEval/7", 5, sixth.text + "\nMy answer:\n" + block(RIGHT))
    assert sixth_call(HUMANEVAL, decided, right).correct
    # One block that defines the function several times is one program, of which the last definition counts.
    several = Response("humaneval", "HumanEval/7", 5, block(f"{RIGHT}\n{THREE}"))
    assert not sixth_call(HUMANEVAL, several, right).correct


def test_no_drafts_and_drafts_of_another_item_are_refused(relation):
    with pytest.raises(Refused, match="no drafts"):
        elect(MATH, [], relation)
    with pytest.raises(ValueError, match="among those of"):
        elect(MATH, [Response("gsm8k", "2", 0, r"\boxed{1}")], relation)
