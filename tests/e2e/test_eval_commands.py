"""The evaluation suite through the command line: checkpoint or file in, score out, at any interruption."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from mmcorl.cli.main import main
from openai_server import OpenAIServer, say

ROWS = [
    # (id, response, gold): right by rule, right in other words, wrong, no commitment, cut off
    ("a", "<think>1+1</think><answer>2</answer>", "2"),
    ("b", "so <answer>the square root of four</answer>", "2"),
    ("c", "\\boxed{5}", "6"),
    ("d", "I do not know", "6"),
    ("e", "<answer>6", "6"),
]


@pytest.fixture
def responses(tmp_path: Path) -> Path:
    file = tmp_path / "mine.jsonl"
    file.write_text("".join(json.dumps({"id": i, "response": r, "gold": g}) + "\n" for i, r, g in ROWS))
    return file


def run(capsys: pytest.CaptureFixture[str], *argv: str | Path) -> tuple[int, str, str]:
    capsys.readouterr()
    code = main([str(part) for part in argv])
    out, err = capsys.readouterr()
    return code, out, err


def scores(out: str) -> Mapping[str, Any]:
    (told,) = json.loads(out)["benchmarks"].values()
    return told


def test_a_file_of_responses_is_graded_by_rules(capsys: pytest.CaptureFixture[str], responses: Path) -> None:
    code, out, _ = run(capsys, "grade", responses, "--json", "--quiet")
    told = scores(out)
    assert code == 0
    # Only `a` is credited by the rules; d and e commit to nothing, and e is cut off.
    assert (told["correct"], told["total"]) == (1, 5)
    assert told["format_rate"] == pytest.approx(3 / 5)
    assert told["cut_off_rate"] == pytest.approx(1 / 5)
    assert told["grader"]["mcq_policy"] == "letter_or_value"


@pytest.mark.parametrize(("word", "correct"), [("correct", 3), ("incorrect", 1), ("maybe so", 1)])
def test_a_judge_only_adds_and_only_where_there_is_an_answer(
    word: str, correct: int, capsys: pytest.CaptureFixture[str], responses: Path
) -> None:
    with OpenAIServer(say(word)) as server:
        code, out, _ = run(capsys, "grade", responses, "--judge", server.url, "--json", "--quiet")
        asked = len(server.calls)
    told = scores(out)
    assert code == 0
    assert asked == 2  # b and c: the rules did not credit them, and they commit to an answer
    assert told["correct"] == correct
    assert told["judge_recovered"] == correct - 1
    assert told["judge_unclear"] == (2 if word == "maybe so" else 0)


def test_a_judge_that_is_not_there_is_told_and_asked_again(capsys: pytest.CaptureFixture[str], responses: Path) -> None:
    code, out, err = run(capsys, "grade", responses, "--judge", "http://127.0.0.1:9/v1", "--json", "--quiet")
    assert code == 0
    assert scores(out)["judge_failed"] == 2
    assert "judge:" in err
    with OpenAIServer(say("correct")) as server:
        _, out, _ = run(capsys, "grade", responses, "--judge", server.url, "--json", "--quiet")
    told = scores(out)
    assert (told["judge_failed"], told["correct"]) == (0, 3)


def test_other_peoples_files_are_read(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    harness = tmp_path / "samples_mine.jsonl"
    doc = {"doc_id": 0, "doc": {"question": "1+1?"}, "target": "2", "filtered_resps": ["2"], "resps": [["\\boxed{2}"]]}
    harness.write_text(json.dumps(doc) + "\n")
    kit = tmp_path / "kit.csv"
    with kit.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["index", "question", "A", "B", "answer", "prediction"])
        writer.writerow([1, "How many?", "40", "45", "B", "<answer>45</answer>"])
        writer.writerow([2, "How many?", "40", "45", "A", "<answer>B</answer>"])
    table = tmp_path / "table.parquet"
    import pyarrow as pa
    import pyarrow.parquet

    pyarrow.parquet.write_table(
        pa.Table.from_pylist([{"id": "1", "prediction": "<answer>7</answer>", "answer": 7.0}]), table
    )
    for path, expected in ((harness, (1, 1)), (kit, (1, 2)), (table, (1, 1))):
        _, out, _ = run(capsys, "grade", path, "--json", "--quiet")
        assert (scores(out)["correct"], scores(out)["total"]) == expected, path


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("", "holds no rows"),
        ('{"id": 1, "gold": "2"}\n', "no response among the columns ['gold', 'id']"),
        (
            '{"id": 1, "response": "2"}\n',
            "row '1' has no gold answer: none of its columns ['id', 'response'] holds known answers",
        ),
        ('{"id": 1, "response": "2", "gold": "2"}\n{"id": 1, "response": "2", "gold": "3"}\n', "different questions"),
        ("[1]\n", "is no JSON object"),
        ("{", "line 1 is no JSON"),
    ],
)
def test_unusable_files_are_refused(
    content: str, says: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "mine.jsonl"
    file.write_text(content)
    code, _, err = run(capsys, "grade", file)
    assert code == 2
    assert says in err
    assert len(err.strip().splitlines()) == 1
    assert not (tmp_path / "mine.graded").exists()


def test_two_samples_of_a_problem_are_averaged_or_voted_on(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "mine.jsonl"
    answers = {"a": ("2", "2", "3"), "b": ("1", "4", "4")}
    file.write_text(
        "".join(
            json.dumps({"id": i, "response": f"<answer>{answer}</answer>", "gold": "2"}) + "\n"
            for i, own in answers.items()
            for answer in own
        )
    )
    _, out, _ = run(capsys, "grade", file, "--json", "--quiet")
    assert scores(out)["aggregation"] == "avg@3"
    assert scores(out)["accuracy"] == pytest.approx(2 / 6)
    voted = tmp_path / "voted"
    _, out, _ = run(capsys, "grade", file, "--json", "--quiet", "--aggregation", "maj@3", "--out", voted)
    assert scores(out)["accuracy"] == pytest.approx(1 / 2)  # a's majority is 2, b's is 4


# -- checkpoints ------------------------------------------------------------------------------------------------


@pytest.fixture
def problems(tmp_path: Path) -> Path:
    file = tmp_path / "math500.json"
    rows = [
        {"problem": f"What is {n}+1?", "solution": "", "answer": str(n + 1), "subject": "Algebra", "level": 1 + n % 5}
        | {"unique_id": f"test/{n}"}
        for n in range(70)
    ]
    file.write_text(json.dumps(rows))
    return file


def evaluate(model: Path, problems: Path, out: Path, *more: str) -> list[str]:
    return ["eval", str(model), f"math500={problems}", "--out", str(out), "--max-new-tokens", "4", "--quiet", *more]


def test_a_checkpoint_is_scored_and_a_killed_evaluation_ends_the_same(
    capsys: pytest.CaptureFixture[str],
    tiny_checkpoints: Mapping[str, Path],
    problems: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = tiny_checkpoints["qwen2"]
    sampled = ("--samples", "2", "--temperature", "1.0")
    assert main(evaluate(model, problems, tmp_path / "whole", *sampled)) == 0
    whole = (tmp_path / "whole" / "summary.json").read_bytes()
    assert json.loads(whole)["benchmarks"]["math500"]["responses"] == 140

    from eval_suite.folder import EvalFolder

    class KilledError(BaseException):
        pass

    def dying(after: int, original: Callable[..., None]) -> Callable[..., None]:
        calls = 0

        def append(self: EvalFolder, name: str, rows: Any) -> None:
            nonlocal calls
            rows = list(rows)
            calls += 1
            if calls == after:
                # Half of the rows and half a line reach the disk.
                original(self, name, rows[: len(rows) // 2])
                with (self.path / name).open("a") as file:
                    file.write('{"benchmark": "ma')
                raise KilledError
            original(self, name, rows)

        return append

    part = tmp_path / "part"
    original = EvalFolder.append
    for after in (1, 3, 2):  # in the items, in the second chunk, in what is left
        monkeypatch.setattr(EvalFolder, "append", dying(after, original))
        with pytest.raises(KilledError):
            main(evaluate(model, problems, part, *sampled))
    monkeypatch.setattr(EvalFolder, "append", original)
    assert main(evaluate(model, problems, part, *sampled)) == 0
    for name in ("summary.json", "responses.jsonl", "rule.jsonl", "items.jsonl"):
        assert (part / name).read_bytes() == (tmp_path / "whole" / name).read_bytes(), name
    capsys.readouterr()


def test_other_settings_in_the_same_folder_are_refused(
    capsys: pytest.CaptureFixture[str], tiny_checkpoints: Mapping[str, Path], problems: Path, tmp_path: Path
) -> None:
    model = tiny_checkpoints["qwen2"]
    argv = evaluate(model, problems, tmp_path / "out", "--limit", "4")
    assert main(argv) == 0
    code, _, err = run(capsys, *argv, "--style", "plain")
    assert code == 2
    assert "holds an evaluation with other settings (style: boxed -> plain): " in err


def test_two_checkpoints_are_compared_pooled_and_put_into_a_table(
    capsys: pytest.CaptureFixture[str], tiny_checkpoints: Mapping[str, Path], problems: Path, tmp_path: Path
) -> None:
    sampled = ("--samples", "2", "--temperature", "1.0", "--limit", "6")
    for name in ("qwen2", "llama"):
        assert main(evaluate(tiny_checkpoints[name], problems, tmp_path / name, *sampled)) == 0
    code, out, _ = run(capsys, "compare", tmp_path / "qwen2", tmp_path / "llama", "--json")
    assert code == 0
    assert json.loads(out)[0]["benchmark"] == "math500"
    code, out, _ = run(capsys, "ensemble", tmp_path / "qwen2", tmp_path / "llama", "--json")
    told = scores(out)
    assert (code, told["aggregation"], told["samples"]) == (0, "maj@4", 4)
    for form, sign in (("markdown", "| "), ("latex", "\\toprule"), ("csv", "accuracy"), ("terminal", "MATH-500")):
        code, out, _ = run(capsys, "table", tmp_path / "qwen2", tmp_path / "llama", "--format", form)
        assert code == 0
        assert sign in out


def test_a_trained_checkpoint_is_asked_as_it_was_trained(tmp_path: Path) -> None:
    from eval_suite.generation import trained_with

    run_folder = tmp_path / "run"
    (run_folder / "final" / "qwen").mkdir(parents=True)
    (run_folder / "metrics.jsonl").write_text("")
    (run_folder / "config.yaml").write_text(
        "prompt: {style: plain, system: Be brief.}\nvision: {max_side: 512, tiles: 4, max_pixels: 90000}\n"
        "agents: [{name: other}, {name: qwen, model: x, template: {enable_thinking: false}}]\n"
    )
    told = trained_with(str(run_folder / "final" / "qwen"))
    assert told == {
        "style": "plain",
        "system": "Be brief.",
        "vision": {"max_side": 512, "tiles": 4, "max_pixels": 90000},
        "template": {"enable_thinking": False},
    }
    assert trained_with("Qwen/Qwen2.5-VL-3B-Instruct") == {}


# -- code ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def humaneval(tmp_path: Path) -> tuple[Path, Path]:
    """One problem in the official schema, and a right and a wrong response to it."""
    problem = {
        "task_id": "HumanEval/0",
        "prompt": 'def double(x: int) -> int:\n    """Twice x."""\n',
        "canonical_solution": "    return 2 * x\n",
        "test": "def check(candidate):\n    assert candidate(2) == 4\n    assert candidate(0) == 0\n",
        "entry_point": "double",
    }
    copy = tmp_path / "humaneval.jsonl"
    copy.write_text(json.dumps(problem) + "\n")
    responses = tmp_path / "programs.jsonl"
    texts = ["```python\ndef double(x):\n    return 2 * x\n```", "```python\ndef double(x):\n    return x + 3\n```"]
    responses.write_text("".join(json.dumps({"id": "HumanEval/0", "response": text}) + "\n" for text in texts))
    return copy, responses


def test_code_runs_only_when_allowed_and_is_graded_by_its_tests(
    capsys: pytest.CaptureFixture[str], humaneval: tuple[Path, Path]
) -> None:
    copy, responses = humaneval
    argv = ["grade", responses, "--benchmark", f"humaneval={copy}", "--json", "--quiet"]
    code, _, err = run(capsys, *argv)
    assert code == 2
    assert "--run-code" in err
    code, out, _ = run(capsys, *argv, "--run-code")
    assert code == 0
    assert (scores(out)["aggregation"], scores(out)["accuracy"]) == ("avg@2", 0.5)
    rows = [json.loads(line) for line in (responses.with_suffix(".graded") / "rule.jsonl").read_text().splitlines()]
    assert [row["rule"] for row in rows] == [True, False]
    assert all(row["tests"] for row in rows)
