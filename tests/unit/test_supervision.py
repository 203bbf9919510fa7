"""Who teaches whom, joined by uid; and the reward for following the teacher."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from doubles import ByOption, CaseFold
from mmcorl.answers import Equivalence
from mmcorl.errors import UserError
from mmcorl.labels.rules import RULES
from mmcorl.labels.supervision import MismatchError, Supervision
from mmcorl.labels.voting import majority
from mmcorl.rewards import Reward, match
from mmcorl.types import Completion, Group, Prompt, PseudoLabel

SAME = CaseFold()


def group(uid, *answers):
    return Group(uid, tuple(Completion(f"<answer>{a}</answer>", a, 3, "stop") for a in answers))


def prompt(uid, gold=None, choices=None):
    return Prompt(uid=uid, row_id=f"row-{uid}", text="?", gold=gold, choices=choices)


def answers_and_teachers(labels):
    return [[(label.answer, label.teacher) for label in row] for row in labels.labels]


# -- ring, self, gold ----------------------------------------------------------------------------------------


def test_two_agents_swap_their_votes():
    prompts = [prompt("p"), prompt("q")]
    groups = [
        [group("p", "1", "1", "2"), group("q", "x", "y", "y")],
        [group("p", "3", None, "3"), group("q", None, None, None)],
    ]
    labels = Supervision("ring", ["A", "B"], relation=SAME).labels(groups, prompts)
    # A votes 1 and y; B votes 3 and, having no answer, nothing.
    assert answers_and_teachers(labels) == [[("3", "B"), (None, "B")], [("1", "A"), ("y", "A")]]
    assert [[vote.answer for vote in row] for row in labels.votes] == [["1", "y"], ["3", None]]
    assert [[label.uid for label in row] for row in labels.labels] == [["p", "q"]] * 2


@pytest.mark.parametrize("n", [1, 2, 3, 5])
def test_the_ring_teaches_each_agent_by_the_next_and_self_by_itself(n):
    names = [f"agent{i}" for i in range(n)]
    groups = [[group("p", f"vote of {name}", "other", f"vote of {name}")] for name in names]
    for kind, teachers in (("ring", names[1:] + names[:1]), ("self", names))[n == 1 :]:
        labels = Supervision(kind, names, relation=SAME).labels(groups, [prompt("p")])
        assert answers_and_teachers(labels) == [[(f"vote of {teacher}", teacher)] for teacher in teachers]


def test_gold_teaches_everyone_by_the_known_answer():
    groups = [[group("p", "1", "1")], [group("p", "2", "2")]]
    labels = Supervision("gold", ["A", "B"], relation=SAME).labels(groups, [prompt("p", gold="7")])
    assert answers_and_teachers(labels) == [[("7", "gold")], [("7", "gold")]]
    assert [row[0].answer for row in labels.votes] == ["1", "2"]  # own votes are still counted, for metrics


@pytest.mark.parametrize("kind", sorted(RULES))
def test_labels_do_not_depend_on_the_gold_answer_unless_named_gold(kind):
    groups = [[group("p", "1", "1"), group("q", "3", "3")], [group("p", "2", "2"), group("q", "4", "4")]]
    provider = Supervision(kind, ["A", "B"], relation=SAME, teachers={"A": "B", "B": "A"} if kind == "map" else None)
    with_gold, other_gold = (
        provider.labels(groups, [replace(prompt(uid, gold=gold), twin=twin) for uid, twin in ("pq", "qp")])
        for gold in ("7", "8")
    )
    assert (with_gold.labels != other_gold.labels) == (kind == "gold")


def test_a_prompt_without_answer_is_refused_by_gold_naming_the_row():
    provider = Supervision("gold", ["A"], relation=SAME)
    with pytest.raises(UserError, match=r"row 'row-q' has no answer"):
        provider.check([prompt("p", gold="1"), prompt("q")])
    with pytest.raises(UserError, match=r"row 'row-q'"):
        provider.labels([[group("q", "1")]], [prompt("q")])
    Supervision("self", ["A"], relation=SAME).check([prompt("q")])  # others need none


def test_the_voting_rule_and_the_options_reach_the_vote():
    groups = [[group("p", "A", "60")], [group("p", "30", "A")]]
    # With options 30, 60: agent 1 votes 30 and 60, a tie; agent 2 votes 30 twice ("30" was written first).
    for rule, first in (({"tie": "drop"}, "30"), ({"min_share": 0.6}, "30"), ({"min_votes": 3}, None)):
        supervision = Supervision("ring", ["1", "2"], relation=ByOption(), **rule)
        labels = supervision.labels(groups, [prompt("p", choices=("30", "60"))])
        assert answers_and_teachers(labels) == [[(first, "2")], [(None, "1")]]


# -- joined by uid -------------------------------------------------------------------------------------------


def test_groups_in_any_order_give_the_same_labels():
    prompts = [prompt(uid) for uid in "pqr"]
    first = [group(uid, f"a{uid}", f"a{uid}") for uid in "pqr"]
    second = [group(uid, f"b{uid}", f"b{uid}") for uid in "pqr"]
    provider = Supervision("ring", ["A", "B"], relation=SAME)
    plain = provider.labels([first, second], prompts)
    for one, two in itertools.product(itertools.permutations(first), itertools.permutations(second)):
        assert provider.labels([one, two], prompts) == plain
    assert [label.answer for label in plain.labels[0]] == ["bp", "bq", "br"]


def test_groups_that_are_not_those_of_the_prompts_stop_the_run():
    prompts, whole = [prompt("p"), prompt("q")], [group("p", "1"), group("q", "1")]
    provider = Supervision("ring", ["A", "B"], relation=SAME)
    for groups_of_b, sentence in (
        ([group("p", "1"), group("z", "1")], "agent 'B' has nothing for prompt q at step 41"),
        ([*whole, group("z", "1")], "agent 'B' has prompt z at step 41, which the batch does not hold"),
        ([group("p", "1"), *whole], "agent 'B' has prompt p twice at step 41"),
        ([], "agent 'B' has nothing for prompt p at step 41"),
    ):
        with pytest.raises(MismatchError, match=sentence):
            provider.labels([whole, groups_of_b], prompts, step=41)
    with pytest.raises(MismatchError, match="prompt p stands twice in one batch"):
        provider.labels([whole, whole], [prompt("p"), prompt("p")])
    with pytest.raises(MismatchError, match="groups of 1 agents for a cohort of 2"):
        provider.labels([whole], prompts)


# -- the reward ----------------------------------------------------------------------------------------------


def test_labels_and_groups_are_joined_by_uid():
    rewards = Reward(SAME)(
        [group("p", "Yes", "no", None, "yes"), group("q", "5", "6")],
        [PseudoLabel("q", "6", "B"), PseudoLabel("p", "YES", "B")],
        [prompt("p"), prompt("q")],
    )
    assert rewards == {"p": (1.0, 0.0, 0.0, 1.0), "q": (0.0, 1.0)}


def test_the_options_of_each_question_decide_its_rewards():
    assert match(("A", "60"), PseudoLabel("p", "30", "B"), ByOption(), ("30", "60")) == (1.0, 0.0)
    assert match(("A", "60"), PseudoLabel("q", "60", "B"), ByOption(), ("60", "90")) == (1.0, 1.0)


# -- the run's own relation, which is not transitive ---------------------------------------------------------


@pytest.fixture(scope="module")
def relation():
    with Equivalence() as relation:
        yield relation


def test_a_number_without_a_unit_is_rewarded_for_no_unit_where_two_are_given(relation):
    # One vote for 5 cm, two for 5, which may be either, five for 5 m: five completions elected the label.
    answers = ["5 cm", "5", "5", *["5 m"] * 5]
    for order in (answers, answers[::-1]):
        vote = majority(order, relation)
        assert vote.answer == "5 m"
        assert dict(vote.counts) == {"5 m": 5, "5": 2, "5 cm": 1}
        rewards = match(order, PseudoLabel("p", vote.answer, "A"), relation)
        assert rewards == tuple(float(answer == "5 m") for answer in order)
    # With one unit there is no doubt: seven votes, seven rewards.
    answers = ["5", "5", *["5 m"] * 5]
    assert majority(answers, relation).counts == (("5", 7),)
    assert match(answers, PseudoLabel("p", "5 m", "B"), relation) == (1.0,) * 7


NUMBERS_AND_UNITS = st.lists(
    st.one_of(
        st.none(),
        st.builds("{}{}".format, st.sampled_from(["5", "5.0", "28", "0.28"]), st.sampled_from(["", " cm", " m", "%"])),
        st.sampled_from(["x = 5", "y = 5", "B", "B. 5", "1/3", "0.333333", "0.3333335"]),
    ),
    min_size=1,
    max_size=16,
)


@settings(deadline=None)
@given(NUMBERS_AND_UNITS, st.randoms())
def test_an_agent_taught_by_its_own_vote_rewards_those_who_cast_it_whatever_the_order(relation, answers, chance):
    vote = majority(answers, relation)
    rewards = match(answers, PseudoLabel("p", vote.answer, "A"), relation)
    assert sum(rewards) == (0 if vote.answer is None else vote.support)
    assert all(not reward for reward, answer in zip(rewards, answers, strict=True) if answer is None)
    if vote.answer is not None:
        assert rewards[answers.index(vote.answer)] == 1.0
        # A reward for an answer that is not the label's would be a class that contradicts the relation.
        assert all(relation.same(a, vote.answer) for a, earned in zip(answers, rewards, strict=True) if earned)
    order = chance.sample(range(len(answers)), len(answers))
    shuffled = majority([answers[i] for i in order], relation)
    assert sorted(count for _, count in shuffled.counts) == sorted(count for _, count in vote.counts)
    if not vote.tie and vote.answer is not None:
        again = match([answers[i] for i in order], PseudoLabel("p", shuffled.answer, "A"), relation)
        assert again == tuple(rewards[i] for i in order)
