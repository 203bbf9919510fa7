"""The blocks of docs/rewards_elsewhere.md, called as each trainer calls them; many rows at once; partial scores."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import dataclass
from enum import Enum
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

import docs_pages
from mmcorl import grade, grade_many
from mmcorl.errors import UserError

RIGHT, WRONG = r"<think>3/6</think> \boxed{\frac{1}{2}}", "<answer>2</answer>"


def block(heading: str) -> dict[str, Any]:
    """Run the first Python block below a heading of the page; return what it defines."""
    page = "docs/rewards_elsewhere.md"
    lines = (docs_pages.ROOT / page).read_text().splitlines()
    below = lines.index(heading)
    code = next(each for each in docs_pages.blocks(page) if each.language == "python" and each.line > below)
    names: dict[str, Any] = {}
    exec(compile(code.text, code.place, "exec"), names)
    return names


def test_the_examples_hold():
    block("# The grader as a reward in other trainers")


def test_trl():
    reward = block("## TRL")["reward"]
    more = {"trainer_state": None, "log_extra": None, "log_metric": None, "completion_ids": [[1], [2]]}
    assert reward(prompts=["?", "?"], completions=[RIGHT, WRONG], solution=["0.5", "0.5"], **more) == [1.0, 0.0]
    chats = [[{"role": "assistant", "content": text}] for text in (RIGHT, WRONG)]
    assert reward(prompts=[[], []], completions=chats, solution=["0.5", "2"], **more) == [1.0, 1.0]


@pytest.mark.slow
def test_trl_trains_a_step_with_it(tiny_checkpoints, tmp_path):
    import patches

    patches.apply(*patches.BEFORE_TRANSFORMERS)
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    calls: list[list[float]] = []

    def reward(**given: Any) -> list[float]:
        given["completions"] = [RIGHT, *given["completions"][1:]]  # an untrained model answers nothing
        calls.append(block("## TRL")["reward"](**given))
        return calls[-1]

    options = GRPOConfig(
        output_dir=str(tmp_path), max_steps=1, per_device_train_batch_size=2, num_generations=2, use_cpu=True,
        max_completion_length=4, report_to=[], save_strategy="no", bf16=False,
    )  # fmt: skip
    rows = Dataset.from_list([{"prompt": "What is 3/6?", "solution": "0.5"}] * 2)
    GRPOTrainer(str(tiny_checkpoints["llama"]), reward, options, train_dataset=rows).train()
    assert calls == [[1.0, 0.0]]


def test_verl():
    score = block("## verl")["compute_score"]
    row = {"data_source": "math", "ground_truth": "0.5", "extra_info": {"num_turns": None, "question": "What is 3/6?"}}
    assert score(solution_str=RIGHT, reward_router_address="", **row) == {"score": 1.0, "answered": 1.0}
    assert score(solution_str="no idea", **row | {"extra_info": None}) == {"score": 0.0, "answered": 0.0}


def test_openrlhf():
    reward = block("## OpenRLHF")["reward_func"]
    prompt = r"<|im_start|>user What is 3/6? Answer in \boxed{0.5} or so.<|im_end|><|im_start|>assistant "
    queries = [f"<s>{prompt}{text}<|im_end|>" for text in (RIGHT, WRONG, "no idea")]
    given = reward(queries, [prompt] * 3, ["0.5"] * 3, extra=None)
    assert given["rewards"].tolist() == given["scores"].tolist() == [1.0, 0.0, 0.0]
    torch.testing.assert_close(given["extra_logs"]["accuracy"], torch.tensor(1 / 3))


def test_slime():
    class Status(Enum):
        COMPLETED = "completed"
        TRUNCATED = "truncated"

    @dataclass
    class Sample:
        response: str
        label: str
        status: Status = Status.COMPLETED

    async def both() -> list[float]:
        samples = (Sample(RIGHT, "0.5"), Sample(WRONG, "0.5"), Sample("<think>so", "0.5", Status.TRUNCATED))
        return await asyncio.gather(*(block("## slime")["reward"](None, sample) for sample in samples))

    assert asyncio.run(both()) == [1.0, 0.0, 0.0]


def test_prime_rl(monkeypatch):
    """With the parts of verifiers 0.4 that the block names; the block was run with the real package, too."""

    class Data:
        def __init__(self, **fields: Any) -> None:
            vars(self).update(fields)

    class Task:
        def __init__(self, data: Any, config: Any = None) -> None:
            self.data, self.config = data, config

        __class_getitem__ = classmethod(lambda cls, _: cls)

    class Taskset:
        def __init__(self, config: Any) -> None:
            self.config = config

        __class_getitem__ = classmethod(lambda cls, _: cls)

    package, parts = ModuleType("verifiers"), ModuleType("verifiers.v1")
    vars(parts).update(TaskData=Data, Task=Task, Taskset=Taskset, reward=lambda function: function)
    vars(parts).update(Trace=SimpleNamespace, TasksetConfig=SimpleNamespace)
    package.v1 = parts
    monkeypatch.setitem(sys.modules, "verifiers", package)
    monkeypatch.setitem(sys.modules, "verifiers.v1", parts)
    [task] = block("## prime-rl")["MathTaskset"](SimpleNamespace(task=None)).load()
    rewards = [asyncio.run(task.correct(SimpleNamespace(last_reply=text))) for text in (RIGHT, WRONG)]
    assert rewards == [1.0, 0.0]


def test_many_rows_have_the_verdicts_of_one_by_one_in_order_as_they_come():
    rows = [{"response": rf"\boxed{{{n}}}", "gold": n % 3} for n in range(6)]
    rows += [{"response": "<answer>7</answer>", "gold": "B", "choices": ["5", "7"]}]
    rows += [{"response": "<answer>4", "gold": "4", "finish_reason": "length"}]
    assert list(grade_many(rows)) == [grade(**row) for row in rows]
    asked: list[int] = []
    verdicts = grade_many({"response": asked.append(n) or rf"\boxed{{{n}}}", "gold": n} for n in range(5))
    assert next(verdicts).correct
    assert asked == [0]
    judged = grade_many([{"response": r"\boxed{a lot}", "gold": "much"}], lambda *_: True)
    assert [(verdict.correct, verdict.stage) for verdict in judged] == [(True, "judge")]
    with pytest.raises(UserError, match=r"row 2 \(counted from 1\) has no 'gold'"):
        list(grade_many([{"response": "1", "gold": 1}, {"response": "1"}]))
    with pytest.raises(UserError, match=r"row 1 \(counted from 1\) has 'choice'"):
        list(grade_many([{"response": "1", "gold": 1, "choice": []}]))
    for broken, says in (
        ({"response": None, "gold": 1, "id": "p7"}, r"^row 2 \(counted from 1, id 'p7'\): response is None, not text"),
        (
            {"response": "1", "gold": "F", "choices": ["1", "2"]},
            r"^row 2 \(counted from 1\): gold 'F' is none of the 2",
        ),
    ):
        verdicts = grade_many([{"response": r"\boxed{1}", "gold": 1, "id": 0}, broken])
        assert next(verdicts).correct
        with pytest.raises(UserError, match=says):
            next(verdicts)


@pytest.mark.parametrize(
    ("answer", "gold", "question", "score"),
    [
        ("3, 1, 2", "1, 2, 3", None, 1.0),  # the same list
        ("1, 3", "1, 2, 3", None, 2 / 3),
        ("1, 2, 3, 4, 5, 6", "1, 2", None, 2 / 6),  # four too many
        ("2, 2", "2, 3", None, 1 / 2),  # each part once
        (r"\{\frac{1}{2}, 7\}", r"\{0.5, 0.7\}", None, 1 / 2),  # by value
        ("2", r"\{1, 2\}", None, 1 / 2),  # one part of a set
        ("(1, 3, 2)", "(1, 2, 3)", None, 1 / 3),  # by position
        ("1, 3, 2", "1, 2, 3", "List them in ascending order.", 1 / 3),
        ("1, 2", "1\n2\n3", None, 2 / 3),  # a part a line
        ("5", "7", None, 0.0),  # no list
        ("0", ", ".join(map(str, range(11))), None, 0.0),  # more than PARTS_LIMIT
    ],
)
def test_the_share_of_a_list(answer, gold, question, score):
    verdict = grade(rf"\boxed{{{answer}}}", gold, question, partial=True)
    assert verdict.score == pytest.approx(score)
    assert verdict.correct == (score == 1.0)
    assert grade(rf"\boxed{{{answer}}}", gold, question).score is None


def test_a_partial_score_of_no_answer_and_of_a_judge_s_credit():
    assert grade("no idea", "1, 2", partial=True).score == 0.0
    assert grade(r"\boxed{1 and some}", "1, 2", judge=lambda *_: True, partial=True).score == 1.0
