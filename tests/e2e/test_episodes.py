"""Episodes without models: who is asked what, what is shown of others, and what every call earns, by hand."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_cotrain import Letters

from mmcorl.config import EpisodeSettings
from mmcorl.interactions import prompts
from mmcorl.interactions.base import (
    CUT,
    Ask,
    Call,
    Episode,
    Outcome,
    Talk,
    Workflow,
    anybody,
    ask,
    converse,
    cut,
    others,
    talks_of,
)
from mmcorl.interactions.comas import comas
from mmcorl.interactions.debate import debate, incentive, mixed
from mmcorl.interactions.records import agent_metrics, call_records
from mmcorl.interactions.verifiers import by_label
from mmcorl.launch.agent_threads import AgentThreads
from mmcorl.types import Completion, Group, Prompt

PROBLEMS = [Prompt(uid, uid, f"{uid}?", gold="4", images=(b"picture",)) for uid in ("p", "q", "r")]
Say = Callable[[str, Prompt], str]


class Scripted:
    """An agent that says what a script tells for its name and the prompt; a text of digits is an answer."""

    def __init__(self, name: str, say: Say):
        self.name, self.say = name, say
        self.heard: list[Prompt] = []
        self.calls: list[tuple[str, int]] = []

    def rollout(self, prompts: Sequence[Prompt], step: int) -> list[Group]:
        self.calls.append(("rollout", len(prompts)))
        self.heard += prompts
        texts = [(prompt.uid, self.say(self.name, prompt)) for prompt in prompts]
        return [Group(uid, (Completion(text, text if text.isdigit() else None, 3, "stop"),)) for uid, text in texts]

    def update(self, rewards: Mapping[str, Sequence[float]], step: int) -> dict[str, float]:
        self.calls.append(("update", len(rewards)))
        return {}

    def evaluate(self, prompts: Sequence[Prompt]) -> list[Completion]:
        return [Completion("4", "4", 1, "stop")] * len(prompts)

    def save(self, directory: Path) -> None: ...

    def load(self, directory: Path) -> None: ...

    def export(self, directory: Path) -> None: ...


def play(workflow: Workflow, agents: int, say: Say = lambda name, prompt: "4") -> Episode:
    return converse([Scripted("abcdefgh"[number], say) for number in range(agents)], workflow, 1)


def conversation(kind: str, batch: Sequence[Prompt] = PROBLEMS, agents: int = 3, **more: Any) -> Workflow:
    """The workflow of step 1 over one conversation per problem."""
    settings = EpisodeSettings.model_validate({"kind": kind, **more})
    if kind == "comas":
        return comas(talks_of(batch, 1), 1, agents, settings, 0)
    return debate(talks_of(batch, 1), 1, agents, settings, 0, by_label(Letters(), settings.verifier.kind))


# -- CoMAS -------------------------------------------------------------------------------------------------------


def test_comas_by_hand() -> None:
    """Two agents, one problem, two rounds: of four solutions one is not scored, the others get 3, 2 and 1."""
    given = {
        "1/scorer/0": "Right.\n<score>3</score>",
        "1/scorer/1": "Good, I would say 3.",
        "2/scorer/0": "<score>2</score>",
    }
    given["2/scorer/1"] = "<score>3</score> no, rather < Score > 1 </ score >"
    told = play(
        conversation("comas", PROBLEMS[:1], 2), 2, lambda _, prompt: given.get(prompt.uid.removeprefix("p/0/"), "4")
    )
    # solver tau = (score - 1) / 2, evaluator 1 - tau, scorer 0; not read: 0, 0, -1
    expected = {
        "1/solver/0": 1.0, "1/evaluator/0": 0.0, "1/scorer/0": 0.0,
        "1/solver/1": 0.0, "1/evaluator/1": 0.0, "1/scorer/1": -1.0,
        "2/solver/0": 0.5, "2/evaluator/0": 0.5, "2/scorer/0": 0.0,
        "2/solver/1": 0.0, "2/evaluator/1": 1.0, "2/scorer/1": 0.0,
    }  # fmt: skip
    assert {uid.removeprefix("p/0/"): reward for uid, reward in told.outcome.rewards.items()} == expected
    # With two agents each evaluates the other's solution.
    evaluators = {call.ask.author: call.ask.agent for call in told.calls if call.ask.role == "evaluator"}
    assert evaluators == {0: 1, 1: 0}
    # Each agent gets what its own calls earned, whoever's solution they were about.
    for agent in (0, 1):
        own = {call.ask.prompt.uid for call in told.calls if call.ask.agent == agent}
        assert told.rewards(agent) == {uid: (told.outcome.rewards[uid],) for uid in own}
    assert told.solution_rewards(0, PROBLEMS[:1]) == {"p": (1.0, 0.5)}
    assert [group.answers for group in told.solutions(1, PROBLEMS[:1])] == [("4", "4")]
    # The record of the scorers: 3, none, 2, 1; those of both agents together.
    metrics = [agent_metrics(agent, told, Letters()) for agent in (0, 1)]
    assert sum(one["calls"] or 0.0 for one in metrics) == 12
    assert (metrics[0]["tau_mean"], metrics[0]["tau_missing_share"]) == (0.75, 0.0)
    assert (metrics[1]["tau_mean"], metrics[1]["tau_missing_share"]) == (0.0, 0.5)
    assert metrics[0]["reward_solver"] == 0.75
    assert (metrics[0]["accuracy_turn1"], metrics[1]["accuracy_turn2"]) == (1.0, 1.0)


@given(
    st.integers(1, 5), st.lists(st.sampled_from(["1", "2", "3", "4", "0", "", "two"]), min_size=1), st.integers(0, 99)
)
def test_what_solver_and_evaluator_earn_has_a_constant_sum(agents: int, scores: list[str], seed: int) -> None:
    noise = random.Random(seed)
    told = play(
        comas(talks_of(PROBLEMS, 2), 7, agents, EpisodeSettings(kind="comas"), seed),
        agents,
        lambda _, prompt: f"<score>{noise.choice(scores)}</score>" if "/scorer/" in prompt.uid else "4",
    )
    assert len(told.calls) == 3 * 2 * 2 * agents * 3  # problems, conversations, rounds, agents, roles
    by = {(c.ask.talk.uid, c.ask.turn, c.ask.author, c.ask.role): c for c in told.calls}
    for (talk, turn, author, role), call in by.items():
        if role != "solver":
            continue
        trio = [call, by[talk, turn, author, "evaluator"], by[talk, turn, author, "scorer"]]
        earned = tuple(told.outcome.rewards[one.ask.prompt.uid] for one in trio)
        read = trio[2].completion.text in ("<score>1</score>", "<score>2</score>", "<score>3</score>")
        assert earned == ((earned[0], 1 - earned[0], 0.0) if read else (0.0, 0.0, -1.0))
        assert earned[0] in (0.0, 0.5, 1.0)
        assert (trio[1].ask.agent == author) == (agents == 1)
    for role in ("evaluator", "scorer"):  # nobody works more than others
        for talk, turn in {(talk, turn) for talk, turn, _, _ in by}:
            assert sorted(by[talk, turn, a, role].ask.agent for a in range(agents)) == list(range(agents))


def test_references_of_the_round_before_are_shown_with_their_evaluations() -> None:
    told = play(conversation("comas", agents=3, references=2), 3, lambda name, prompt: f"{name} on {prompt.uid}")
    first = [call for call in told.calls if call.ask.turn == 1 and call.ask.role == "solver"]
    assert all(call.ask.shown == () and call.ask.prompt.text == call.ask.talk.problem.text for call in first)
    for call in told.calls:
        if call.ask.turn == 2 and call.ask.role == "solver":
            talk = call.ask.talk.uid
            solutions, evaluations = call.ask.shown[::2], call.ask.shown[1::2]
            assert len(set(solutions)) == 2
            assert all(uid.startswith(f"{talk}/1/solver/") for uid in solutions)
            assert [uid.replace("solver", "evaluator") for uid in solutions] == list(evaluations)
            assert all(uid in call.ask.prompt.text for uid in call.ask.shown)
        assert call.ask.prompt.images == (b"picture",)  # in every role
        assert call.ask.prompt.style == (None if call.ask.role == "solver" else "plain")
        assert call.ask.prompt.quotes == bool(call.ask.shown)
    scored = next(call for call in told.calls if call.ask.role == "scorer")
    assert scored.ask.shown == tuple(f"p/0/1/{role}/{scored.ask.author}" for role in ("solver", "evaluator"))


# -- debate ------------------------------------------------------------------------------------------------------

SCORES = [[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]]
"""[T][N]: means over agents 0.5, 0.5, 1."""


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        # (1 + .3 * .5 + .09 * 1) / 1.39 and (0 + .15 + .09) / 1.39; (0 + .3) / 1.3 and (1 + .3) / 1.3; the last itself
        ({}, [[1.24 / 1.39, 0.24 / 1.39], [0.3 / 1.3, 1.0], [1.0, 1.0]]),
        # agent 0: (1 + 0 + .09) / 1.39; agent 1: (0 + .3 + .09) / 1.39
        ({"share": "own"}, [[1.09 / 1.39, 0.39 / 1.39], [0.3 / 1.3, 1.0], [1.0, 1.0]]),
        ({"gamma": 0.0}, SCORES),
        ({"mix": "last"}, [[1.0, 1.0]] * 3),
        ({"mix": "current"}, [[0.5, 0.5], [0.5, 0.5], [1.0, 1.0]]),
        ({"mix": "current", "share": "own"}, SCORES),
        # Q = .5 in turn 2 and (1 + 0 + 0 + 1) / 4 in turn 3; R + .5 (R - Q)
        ({"mix": "margin"}, [[1.0, 0.0], [-0.25, 1.25], [1.25, 1.25]]),
        # R + .5 (Q R - (1 - Q)(1 - R)), the same numbers at Q = .5
        ({"mix": "quality"}, [[1.0, 0.0], [-0.25, 1.25], [1.25, 1.25]]),
        # Q of agent 0: 1, then .5; of agent 1: 0, then .5. 0 + .5 (1 * 0 - 0 * 1) and 1 + .5 (0 * 1 - 1 * 0)
        ({"mix": "quality", "share": "own"}, [[1.0, 0.0], [0.0, 1.0], [1.25, 1.25]]),
        # 0 + .5 (0 - 1) and 1 + .5 (1 - 0); then 1 + .5 (1 - .5)
        ({"mix": "margin", "share": "own"}, [[1.0, 0.0], [-0.5, 1.5], [1.25, 1.25]]),
        # plus .5 times the own score in the last turn, 1 for both
        ({"mix": "margin", "outcome": 0.5}, [[1.5, 0.5], [0.25, 1.75], [1.75, 1.75]]),
        ({"mix": "quality", "shaping": 0.1}, [[1.0, 0.0], [-0.05, 1.05], [1.05, 1.05]]),
    ],
)  # fmt: skip
def test_mixtures_by_hand(more: dict[str, Any], expected: list[list[float]]) -> None:
    settings = EpisodeSettings.model_validate({"kind": "debate", **more})
    found = [[mixed(SCORES, t, a, settings) for a in (0, 1)] for t in range(3)]
    assert found == [pytest.approx(row) for row in expected]


def by_the_book(s: list[list[float]], t: int, a: int, alpha: Sequence[float]) -> float:
    """MAPoRL's `apply_incentive`, branch by branch, alpha_2 and alpha_3 with the sign that we give them."""
    n, earned = len(s[0]), 0.0

    def peers(turn: int) -> float:
        return sum(s[turn][one] for one in range(n) if one != a) / (n - 1)

    if t > 0:
        if s[t - 1][a] > 0.7 and s[t][a] < 0.3:
            if n == 1 or peers(t - 1) > 0.7:
                earned -= alpha[1]
            elif peers(t - 1) < 0.3:
                earned -= alpha[0]
        if s[t - 1][a] < 0.3 and s[t][a] > 0.7:
            if n == 1 or peers(t - 1) < 0.3:
                earned += alpha[1]
            elif peers(t - 1) > 0.7:
                earned += alpha[0]
    if t < len(s) - 1 and n > 1:
        if peers(t + 1) > 0.7 and peers(t) < 0.3:
            earned += alpha[3] if s[t][a] > 0.7 else alpha[2] if s[t][a] < 0.3 else 0.0
        if peers(t + 1) < 0.3 and peers(t) > 0.7:
            earned -= alpha[3] if s[t][a] < 0.3 else alpha[2] if s[t][a] > 0.7 else 0.0
    return earned


@given(
    st.integers(1, 3).flatmap(
        lambda n: st.lists(
            st.lists(st.sampled_from([0.0, 0.5, 0.75, 1.0]), min_size=n, max_size=n), min_size=1, max_size=3
        )
    )
)
def test_incentives_are_those_of_maporl(scores: list[list[float]]) -> None:
    alphas = (1.0, 10.0, 100.0, 1000.0)
    for t in range(len(scores)):
        for a in range(len(scores[0])):
            assert incentive(scores, t, a, alphas) == by_the_book(scores, t, a, alphas)


def test_a_debate_by_hand() -> None:
    """Two agents; a says 4 and stays, b says 5 and comes round. The pooled majority is 4, three of four."""

    def say(name: str, prompt: Prompt) -> str:
        return "5" if name == "b" and "/1/solver" in prompt.uid else "4"

    told = play(conversation("debate", PROBLEMS[:1], 2), 2, say)
    # a: (1 + .3) / 1.3 and 1; b: (0 + .3 * 1) / 1.3 and 1
    assert told.solution_rewards(0, PROBLEMS[:1]) == {"p": pytest.approx((1.0, 1.0))}
    assert told.solution_rewards(1, PROBLEMS[:1]) == {"p": pytest.approx((0.3 / 1.3, 1.0))}
    last = told.calls[-1].ask
    assert last.shown == ("p/0/1/solver/1", "p/0/1/solver/0")  # one's own first
    assert last.prompt.text.startswith("p?\n\nYou answered this before:\n5\n\nAnswer of another solver (1):\n4\n\n")
    assert agent_metrics(1, told, Letters()) == {
        "calls": 2.0, "shortened_share": 0.0, "reward_solver": pytest.approx((0.3 / 1.3 + 1) / 2),
        "accuracy_turn1": 0.0, "accuracy_turn2": 1.0, "verified_mean": 0.5, "verified_missing_share": 0.0,
    }  # fmt: skip


def test_majority_needs_no_answers_and_silence_is_never_right() -> None:
    blind = [Prompt("p", "p", "?")]
    silent = play(conversation("debate", blind, 2), 2, lambda *_: "I do not know")
    assert set(silent.outcome.rewards.values()) == {0.0}
    odd = play(conversation("debate", blind, 2, rounds=1), 2, lambda name, _: "7" if name == "a" else "?")
    assert odd.outcome.rewards == {"p/0/1/solver/0": 1.0, "p/0/1/solver/1": 0.0}
    by_gold = play(conversation("debate", PROBLEMS[:1], 2, rounds=1, verifier={"kind": "gold"}), 2, lambda *_: "7")
    assert set(by_gold.outcome.rewards.values()) == {0.0}


def test_the_majority_is_over_all_conversations_of_a_problem() -> None:
    talks = talks_of(PROBLEMS[:1], 3)
    settings = EpisodeSettings(kind="debate", rounds=1)
    told = play(
        debate(talks, 1, 1, settings, 0, by_label(Letters(), "majority")),
        1,
        lambda _, p: "4" if "/0/1" in p.uid else "5",
    )
    assert list(told.outcome.rewards.values()) == [0.0, 1.0, 1.0]
    assert told.solution_rewards(0, PROBLEMS[:1]) == {"p": (0.0, 1.0, 1.0)}


# -- draws, texts, uids --------------------------------------------------------------------------------------------


@given(st.integers(1, 8), st.integers(0, 10**6))
def test_nobody_evaluates_itself_where_there_are_others(agents: int, seed: int) -> None:
    drawn = others(random.Random(seed), agents)
    assert sorted(drawn) == list(range(agents))
    assert agents == 1 or all(one != other for one, other in enumerate(drawn))
    assert sorted(anybody(random.Random(seed), agents)) == list(range(agents))


def test_every_order_without_oneself_is_drawn() -> None:
    noise = random.Random(0)
    drawn = [tuple(others(noise, 3)) for _ in range(300)]
    counts = {one: drawn.count(one) for one in set(drawn)}
    assert set(counts) == {(1, 2, 0), (2, 0, 1)}
    assert min(counts.values()) > 110  # of 300 fair throws: 4.6 deviations


@pytest.mark.parametrize("kind", ["comas", "debate"])
def test_draws_depend_on_seed_step_and_problem_and_not_on_the_place_in_the_batch(kind: str) -> None:
    def asked(workflow: Workflow) -> dict[str, tuple[int, tuple[str, ...]]]:
        return {call.ask.prompt.uid: (call.ask.agent, call.ask.shown) for call in play(workflow, 4).calls}

    settings = EpisodeSettings(kind=kind, references=1)  # type: ignore[arg-type]

    def start(batch: Sequence[Prompt], step: int, seed: int) -> Workflow:
        if kind == "comas":
            return comas(talks_of(batch, 1), step, 4, settings, seed)
        return debate(talks_of(batch, 1), step, 4, settings, seed, by_label(Letters(), "majority"))

    base = asked(start(PROBLEMS, 1, 0))
    assert asked(start(PROBLEMS[::-1], 1, 0)) == base
    alone = asked(start(PROBLEMS[1:2], 1, 0))
    assert alone.items() <= base.items()
    assert asked(start(PROBLEMS, 2, 0)) != base
    assert asked(start(PROBLEMS, 1, 1)) != base


@given(st.text(), st.integers(1, 20))
def test_long_texts_lose_their_middle(text: str, limit: int) -> None:
    kept, whole = cut(text, limit), text.strip()
    if len(whole) <= limit:
        assert kept == whole
    else:
        head, tail = kept[: limit - limit // 2], kept[limit - limit // 2 + len(CUT) :]
        assert kept == head + CUT + tail
        assert whole.startswith(head)
        assert whole.endswith(tail)
        assert len(head + tail) == limit


def test_what_was_cut_is_told_and_views_hold_the_same_texts() -> None:
    problem = Prompt("p", "p", "How many?", views={"other": "Count them."})
    long = Call(ask(Talk(problem), 1, "solver", 0, prompts.debate, limit=9), Completion("x" * 50, None, 9, "length"))
    one = ask(Talk(problem), 1, "evaluator", 1, prompts.evaluate, [long], author=0, limit=10, style="plain")
    assert (one.shortened, long.ask.shortened) == (1, 0)
    shown = "xxxxx\n[...]\nxxxxx"
    assert one.prompt.text == prompts.evaluate("How many?", shown)
    assert one.prompt.views == {"other": prompts.evaluate("Count them.", shown)}
    assert one.prompt.uid == "p/0/1/evaluator/0"
    record = call_records(3, ["a", "b"], Episode((Call(one, long.completion),), Outcome({one.prompt.uid: 0.5})), 4)[0]
    assert record["text"] == "xx\n[...]\nxx"
    assert (record["agent"], record["author"], record["shortened"], record["reward"]) == ("b", "a", 1, 0.5)


@pytest.mark.parametrize(
    ("text", "score"),
    [
        ("<score>1</score>", 1),
        ("Because. <SCORE> 2 </SCORE>", 2),
        ("<score>1</score> ... <score>3</score>", 3),
        ("<score>3</score> ... <score>N</score>", None),
        ("<score>0</score>", None),
        ("<score>4</score>", None),
        ("<score>2.5</score>", None),
        ("<score>2", None),
        ("2", None),
        ("", None),
    ],
)
def test_scores_are_read_from_tags_alone(text: str, score: int | None) -> None:
    assert prompts.read_score(text) == score


@pytest.mark.parametrize(
    ("text", "value"),
    [("<score>0.25</score>", 0.25), ("<score>1</score>", 1.0), ("<score>.5</score>", 0.5), ("<score>0</score>", 0.0)]
    + [(f"<score>{bad}</score>", None) for bad in ("1.5", "-0.5", "90", "90%", "nan", "1e-3", "")]
    + [("0.5", None)],
)
def test_probabilities_are_read_from_tags_alone(text: str, value: float | None) -> None:
    assert prompts.read_probability(text) == value


# -- driving a workflow --------------------------------------------------------------------------------------------


def one_turn(*asks: Ask, rewards: Mapping[str, float] | None = None) -> Workflow:
    made = yield list(asks)
    return Outcome({call.ask.prompt.uid: 1.0 for call in made} if rewards is None else rewards)


def asked(agent: int, problem: Prompt = PROBLEMS[0], role: Any = "solver") -> Ask:
    return ask(Talk(problem), 1, role, agent, prompts.debate, limit=10)


def test_agents_that_are_asked_nothing_in_a_turn_are_not_called() -> None:
    def workflow() -> Workflow:
        first = yield [asked(0), asked(0, PROBLEMS[1])]
        second = yield [asked(1)]
        return Outcome({call.ask.prompt.uid: 0.0 for call in [*first, *second]})

    cohort = [Scripted("a", lambda *_: "1"), Scripted("b", lambda *_: "2")]
    lanes = AgentThreads("ab")
    told = converse(cohort, workflow(), 1, lanes)
    lanes.close()
    assert [agent.calls for agent in cohort] == [[("rollout", 2)], [("rollout", 1)]]
    assert [call.completion.text for call in told.calls] == ["1", "1", "2"]


@pytest.mark.parametrize(
    ("workflow", "sentence"),
    [
        (lambda: one_turn(asked(0), asked(0), asked(1)), "step 1: a workflow asked 'p/0/1/solver/0' twice"),
        (lambda: one_turn(asked(0), asked(1), rewards={"p/0/1/solver/0": 1.0}), "first at 'p/0/1/solver/1'"),
        (lambda: one_turn(asked(0)), "step 1: agent 'b' was asked nothing"),
    ],
)
def test_workflows_that_break_the_rules(workflow: Callable[[], Workflow], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        play(workflow(), 2)
