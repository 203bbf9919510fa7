"""Answers by the hundred: what rules credit, and what they must leave to a judge, gold by gold."""

from collections.abc import Iterator

import pytest

from eval_suite.grading import Grader
from paths import CASES


def cases(file: str) -> list[tuple[tuple[str, ...] | None, str, list[str], list[str]]]:
    """(options, gold, credited, not credited) of every gold in a table."""
    rows: list[tuple[tuple[str, ...] | None, str, list[str], list[str]]] = []
    choices: tuple[str, ...] | None = None
    for line in (CASES / file).read_text(encoding="utf-8").splitlines():
        mark, _, rest = line.partition(" ")
        match mark:
            case "?":
                choices = tuple(rest.split(" ;; "))
            case "=":
                rows.append((choices, rest, [], []))
            case "+" | "-":
                _, _, credited, refused = rows[-1]
                (credited if mark == "+" else refused).extend(rest.split(" ;; "))
            case _:
                assert not line or mark == "#", line
    return rows


@pytest.fixture(scope="module")
def grader() -> Iterator[Grader]:
    with Grader() as grader:
        yield grader


@pytest.mark.parametrize(
    ("choices", "gold", "credited", "refused"),
    [
        pytest.param(*row, id=f"{file}-{number}-{row[1][:24]}")
        for file in ("grading_free_form.txt", "grading_options.txt")
        for number, row in enumerate(cases(file))
    ],
)
def test_table(
    grader: Grader, choices: tuple[str, ...] | None, gold: str, credited: list[str], refused: list[str]
) -> None:
    wrong = []
    for answer, expected in [*((a, True) for a in credited), *((a, False) for a in refused)]:
        verdict = grader.grade(f"<think>Let me see.</think><answer>{answer}</answer>", gold, choices=choices)
        if verdict.correct is not expected:
            wrong.append((answer, verdict.reason))
    assert wrong == []
