"""`mmcorl judge-check`, and formats of judges through the command line."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from eval_suite.evaluation.judge_check import SAMPLE
from evaluations import Cli, write_rows
from openai_server import Call, OpenAIServer, Reply, fail, say

ROWS: list[dict[str, Any]] = [
    {"family": "units", "question": "How far?", "gold": "1 km", "answer": "a thousand metres", "correct": True},
    {"family": "units", "question": "How far?", "gold": "1 km", "answer": "a thousand feet", "correct": False},
    {"family": "units", "question": "How far?", "gold": "1 km", "answer": "ten miles", "correct": False},
    {"family": "words", "gold": "5", "answer": "five", "correct": True, "response": "Counting: so five."},
    {"family": "words", "gold": "5", "answer": "fifteen", "correct": False},
]
LETTERS = """from mmcorl.grading.judge import JudgeFormat
def ask(request):
    return f"{request.gold} | {request.answer} | {request.ending}"
letters = JudgeFormat("x", "Letters.", ask, menu={"A": True, "B": False}, sees="response")
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "judge_letters.py").write_text(LETTERS)
    return write_rows(tmp_path / "rows.jsonl", ROWS)


def shares(judge: dict[str, Any]) -> list[tuple[int, int]]:
    return [(judge[name]["part"], judge[name]["whole"]) for name in ("accuracy", "false_credit", "missed")]


def test_judges_are_measured_kept_and_shown_side_by_side(cli: Cli, file: Path, tmp_path: Path) -> None:
    def reply(call: Call) -> Reply:
        shown = call.quoted("Candidate answer")
        return Reply({"five": "hm", "ten miles": "correct", "a thousand metres": "correct"}.get(shown, "incorrect"))

    with OpenAIServer(reply) as server:
        cli("judge-check", file, "--judge", server.url)
        assert "judge: 5 requests, about " in cli.err
        assert "40 to write, more if it thinks" in cli.err
        assert "judge: 5 asked in 5 requests" in cli.err
        # Right: a thousand metres (yes), five (unclear, so missed). Wrong: feet (no), miles (yes), fifteen (no).
        (judge,) = cli.json("judge-check", file, "--judge", server.url)["judges"]
        assert (shares(judge), judge["unclear"]) == ([(3, 5), (1, 3), (1, 2)], 1)
        assert shares(judge["families"]["units"]) == [(2, 3), (1, 2), (0, 1)]
        # Wilson for 1 of 3: (1/3 + z^2/6 +- z sqrt(2/27 + z^2/36)) / (1 + z^2/3), z = 1.96.
        assert judge["false_credit"]["wilson"] == pytest.approx([0.0615, 0.7923], abs=1e-4)
        assert len(server.calls) == 6, "only the unclear one is asked again"
    with OpenAIServer(lambda call: Reply("A" if " so five." in call.prompt else "B")) as server:
        more = ["--judge", server.url, "--judge-model", "mine", "--judge-format", "judge_letters.py:letters"]
        mine, first = cli.json("judge-check", file, *more)["judges"]
        assert (shares(mine), shares(first)) == ([(4, 5), (0, 3), (1, 2)], [(3, 5), (1, 3), (1, 2)])
        assert {call.prompt.split(" | ")[2] for call in server.calls} >= {"Counting: so five.", "fifteen"}
    both = cli("judge-check", file, "--quiet")
    assert all(text in both for text in ("1. mine", "2. Qwen/Qwen2.5-32B-Instruct", "judge_letters.py:letters"))
    # Rows that have changed are other rows.
    write_rows(file, ROWS[:3])
    assert "no judge is named" in cli.refused("judge-check", file)


def test_a_check_stands_beside_the_scores_of_its_judge(cli: Cli, file: Path, tmp_path: Path) -> None:
    rows = [{"id": "a", "response": "<answer>five</answer>", "gold": "6"}]
    responses, folder = write_rows(tmp_path / "r.jsonl", rows), tmp_path / "r.graded"
    with OpenAIServer(say("correct")) as server:
        judge = ["--judge", server.url, "--judge-model", "m"]
        cli("grade", responses, *judge)
        assert "(it had m, prompt 2)" in cli.refused(*("judge-check", file, "--judge", server.url, "--beside", folder))
        assert "holds no evaluation" in cli.refused("judge-check", file, *judge, "--beside", tmp_path)
        cli("judge-check", file, *judge, "--beside", folder)
        # Everything is credited: 2 of 5 as labelled, 3 of 3 wrong ones credited, 0 of 2 missed.
        says = "on 5 labelled rows of rows.jsonl: accuracy 40.0 [11.8, 76.9], false credit 100.0 [43.9, 100.0]"
        assert f"{says}, missed 0.0 [0.0, 65.8] %" in (folder / "results.md").read_text().replace("\\", "")
        assert f"Judge, {says}" in " ".join(cli("grade", responses, *judge).split())
        # Another judge of these responses has not been checked.
        assert "labelled rows" not in cli("grade", responses, "--judge", server.url)
        assert "labelled rows" not in (folder / "results.md").read_text()


def test_what_cannot_be_checked_is_refused(cli: Cli, file: Path) -> None:
    url = ["--judge", "http://127.0.0.1:9/v1", "--judge-set", "retries=0"]
    for row, sentence in [
        ({"correct": None}, "row 1 of"),
        ({"correct": "perhaps"}, "correct 'perhaps': give a known answer, an answer, and true or false"),
        ({"gold": " "}, "gold ' '"),
        ({"choices": "3, 4"}, "choices '3, 4': give a list of texts"),
    ]:
        write_rows(file, [ROWS[0] | row])
        assert sentence in cli.refused("judge-check", file, *url)
    write_rows(file, [ROWS[0] | {"id": "a"}] * 2)
    assert "id 'a' stands twice" in cli.refused("judge-check", file, *url)
    for correct, labels in ((ROWS[0]["correct"], "the same label"), (not ROWS[0]["correct"], "two labels")):
        write_rows(file, [ROWS[0] | {"id": "a"}, ROWS[0] | {"id": "b", "correct": correct}])
        assert f"rows a and b of {file} are the same answer, with {labels}" in cli.refused("judge-check", file, *url)
    write_rows(file, ROWS)
    assert "--judge-end 9 is for a format that shows the response" in cli.refused(
        *("judge-check", file, *url, "--judge-end", "9", "--judge-format", "judge_letters.py:ask")
    )
    cli("judge-check", file, *url, status=1)
    assert "the judge answered none of 5 rows" in cli.err
    with OpenAIServer(lambda call: fail(400)(call) if "five" in call.prompt else Reply("correct")) as server:
        (judge,) = cli.json("judge-check", file, "--judge", server.url)["judges"]
    assert (judge["failed"], shares(judge)) == (1, [(1, 4), (3, 3), (0, 1)])


def test_a_format_is_part_of_a_verdict(cli: Cli, tmp_path: Path, file: Path) -> None:
    rows = [{"id": "a", "response": "so <answer>five</answer>.", "gold": "6", "question": "?"}]
    responses = write_rows(tmp_path / "r.jsonl", rows)

    def graded(*more: str) -> tuple[int, int, str]:
        scores = cli.score("grade", responses, "--judge", server.url, "--quiet", *more)
        return scores["judge_recovered"], len(server.calls), scores["judge"]["prompt_version"].partition(" ")[0]

    with OpenAIServer(lambda call: Reply("correct" if "Known answer" in call.prompt else "B")) as server:
        letters = ("--judge-format", "judge_letters.py:letters")
        assert graded() == (1, 1, "2")
        assert graded(*letters) == (0, 2, "judge_letters.py:letters")
        assert server.calls[1].prompt == "6 | five | so < answer>five< /answer>."
        assert graded(*letters, "--judge-end", "3")[:2] == (0, 3)
        assert server.calls[2].prompt == "6 | five | r>."
        # Both are remembered: nothing is asked again.
        assert graded() == (1, 3, "2")
        assert graded(*letters)[:2] == (0, 3)


def test_the_rows_that_come_with_it() -> None:
    rows = [json.loads(line) for line in SAMPLE.read_text(encoding="utf-8").splitlines()]
    families = Counter(row["family"] for row in rows)
    assert (len(rows), len(families), min(families.values())) == (132, 13, 10)
    assert (
        len({(row["question"], row["gold"], row["answer"]) for row in rows}) == len({row["id"] for row in rows}) == 132
    )
    assert all({row["correct"] for row in rows if row["family"] == name} == {True, False} for name in families)
