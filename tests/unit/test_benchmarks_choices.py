"""MMStar, Geometry3K, MMK12, AI2D, BLINK, RealWorldQA, VisNumBench and CharXiv: rows as they are published, answers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from eval_suite import grade_file
from eval_suite.benchmarks.tasks import BENCHMARKS
from eval_suite.benchmarks.tasks.blink import TASKS
from eval_suite.benchmarks.tasks.visnumbench import options
from eval_suite.reporter import Reporter
from evaluations import counts, write_rows
from mmcorl.data.row_parsing import RowError
from mmcorl.errors import UserError
from mmcorl.grading.items import Item
from walk.rows import WALK, filled

NAMES = ("mmstar", "geometry3k", "mmk12", "ai2d", "blink", "realworldqa", "visnumbench", "charxiv")


def row(name: str, number: int = 1, **changes: Any) -> dict[str, Any]:
    """A published row, with a picture like no other."""
    return dict(filled(WALK["benchmarks"][name], number)) | changes


def load(name: str, folder: Path, *rows: dict[str, Any]) -> tuple[Item, ...]:
    return BENCHMARKS[name].load(write_rows(folder / f"{name}.jsonl", rows)).items


@pytest.mark.parametrize(
    ("name", "right", "wrong"),
    [
        # An option that holds a comma; the letter and the value.
        ("mmstar", ("B", "(B)", "3, 4", "B: 3, 4"), ("A", "3", "C", "B or C")),
        ("geometry3k", (r"8\sqrt{2}", r"8 \sqrt { 2 }", "sqrt(128)"), ("C", "8", "11")),
        ("geometry3k_choices", ("C", r"8\sqrt{2}"), ("B", "8", "16")),
        ("mmk12", ("C", "4", "$4$"), ("D", "10.5", "3")),
        # Letters of the diagram are options: B is right, whose value is D; D has the value a.
        ("ai2d", ("B", "(B)"), ("A", "C", "D", "c")),
        ("blink", ("C", "(C)", "2"), ("(B)", "3", "A")),
        ("realworldqa", ("C", "Right"), ("A", "Left")),
        ("visnumbench", ("D", "(D)", "(60, 70) degrees"), ("A", "(90, 100) degrees")),
        ("charxiv", ("3", "3.0", r"\frac{6}{2}"), ("4", "three or four")),
    ],
)
def test_a_published_row_and_its_answers(
    name: str, right: tuple[str, ...], wrong: tuple[str, ...], tmp_path: Path, credited: Any
) -> None:
    published = row(name.removesuffix("_choices"))
    loaded = BENCHMARKS[name].load(write_rows(tmp_path / "rows.jsonl", [published]))
    assert loaded.notes == (f"partial: 1 of {BENCHMARKS[name].rows} rows",) or name == "charxiv"
    (item,) = loaded.items
    assert item.benchmark == name
    assert len(item.images) == 1
    assert "<image>" not in item.question
    assert [answer for answer in (*right, *wrong) if credited(item, answer)] == [*right]


def test_options_that_the_question_does_not_spell_are_letters(tmp_path: Path, credited: Any) -> None:
    rows = [
        row("mmk12", question="<image>\nWhich figure?", id="a"),
        row("mmk12", 2, question="Which?\nA. 1\nB.\nC. 3\nD. 4", id="b", answer="E"),
    ]
    figure, short = load("mmk12", tmp_path, *rows)
    assert (figure.question, figure.choices) == ("Which figure?", ("A", "B", "C", "D"))
    assert short.choices == ("A", "B", "C", "D", "E")
    assert [answer for answer in "ABCDE" if credited(short, answer)] == ["E"]
    with pytest.raises(UserError, match="the answer '10' is none of the options"):
        load("mmk12", tmp_path, row("mmk12", answer="10"))


def test_ai2d_counts_options_from_nought_and_groups_by_diagram(tmp_path: Path) -> None:
    rows = [row("ai2d"), row("ai2d", question="another"), row("ai2d", 2), row("ai2d", 3)]
    items = load("ai2d", tmp_path, *rows)
    assert [item.group == items[0].group for item in items] == [True, True, False, False]
    # The same question about other diagrams: hashes of the text, numbered.
    assert [item.id.partition("#")[2] for item in items] == ["", "", "2", "3"]
    for answer in ("4", "-1"):
        with pytest.raises(UserError, match=f"answer {answer} is none of 4 options, counted from 0"):
            load("ai2d", tmp_path, row("ai2d", answer=answer))


def test_blink_is_the_mean_over_tasks_once_all_are_there(tmp_path: Path) -> None:
    rows = [row("blink", n, idx=f"val_{task}_1", sub_task=task) for n, task in enumerate(TASKS)]
    rows += [row("blink", 20 + n, idx=f"val_Jigsaw_{n}", sub_task="Jigsaw", image_2="$uri") for n in range(2, 5)]
    items = load("blink", tmp_path, *filled(rows, 30))
    assert [len(item.images) for item in items] == [1] * 14 + [2] * 3
    correct = {item.id: float(item.id in ("val_Jigsaw_2", "val_Counting_1")) for item in items}
    scores = BENCHMARKS["blink"].sub_scores(items, correct)
    # Jigsaw 1 of 4, Counting 1 of 1, the others none: (1/4 + 1) / 14, where 2 of 17 rows are right.
    assert scores["official"]["Total"]["accuracy"] == pytest.approx(1.25 / 14)
    assert scores["official"]["Total"]["ratio"] == 1
    assert counts(scores["sub_task"])["Jigsaw"] == (1, 4)
    assert "official" not in BENCHMARKS["blink"].sub_scores(items[:13], correct)


@pytest.mark.slow
def test_blink_is_read_from_a_snapshot_with_a_folder_per_task(tmp_path: Path) -> None:
    from datasets import Dataset

    (tmp_path / "README.md").write_text("---\nconfigs:\n- config_name: Art_Style\n---\n")
    for task in TASKS:
        for split in ("val", "test"):
            (tmp_path / task).mkdir(exist_ok=True)
            idx = f"{split}_{task}_1"
            rows = [row("blink", idx=idx, sub_task=task, answer="(A)" if split == "val" else "hidden")]
            Dataset.from_list(rows).to_parquet(str(tmp_path / task / f"{split}-00000-of-00001.parquet"))
    items = BENCHMARKS["blink"].load(tmp_path).items
    assert sorted(item.id for item in items) == [f"val_{task}_1" for task in TASKS]


def test_realworldqa_drops_the_words_that_contradict_the_instruction(tmp_path: Path, credited: Any) -> None:
    direct = "How many?\nPlease answer directly with a single word or number."
    free = row("realworldqa", 2, question=direct, answer="2", image_path="1.webp")
    text = row("realworldqa", 3, question="Up or down the hill?", answer="Downhill", image_path="2.webp")
    facing, number, hill = load("realworldqa", tmp_path, row("realworldqa"), free, text)
    assert facing.question.endswith("\nC. Right")
    assert (number.question, number.choices) == ("How many?", None)
    assert [credited(number, answer) for answer in ("2", "3")] == [True, False]
    assert [credited(hill, answer) for answer in ("Downhill", "downhill", "Uphill")] == [True, True, False]


@pytest.mark.parametrize(
    ("answer", "gold"),
    [("(d)", "D"), ("d", "D"), ("D.", "D"), ("(b) (30, 40) degrees", "B"), ("(30, 40) degrees", "B")],
)
def test_visnumbench_answers(answer: str, gold: str, tmp_path: Path) -> None:
    (item,) = load("visnumbench", tmp_path, row("visnumbench", answer=answer))
    assert item.gold == gold
    assert item.choices == ("(90, 100) degrees", "(30, 40) degrees", "(170, 180) degrees", "(60, 70) degrees")


def test_visnumbench_options_are_marked_in_order() -> None:
    assert options("(a) 1, (b) 2; (c) f(x)=3") == ("1", "2", "f(x)=3")
    assert options("(A) left\n(B) right") == ("left", "right")
    for text in ("1, 2, 3", "(a) 1", "(b) 1 (a) 2", "(a) 1 (c) 2"):
        with pytest.raises(RowError, match="column 'option' holds"):
            options(text)


@pytest.mark.parametrize(
    ("kind", "answer", "words"),
    [
        (1, "Joint-CNN", "grounded to some text"),
        (2, "lower", "conform to one of the options"),
        (3, "0.50", "grounded to a number"),
        (4, "3", "must be an exact integer."),
        (4, "0.40", "must be a number with 2 decimal places."),
    ],
)
def test_charxiv_asks_as_the_authors_do(kind: int, answer: str, words: str, tmp_path: Path, credited: Any) -> None:
    (item,) = load("charxiv", tmp_path, row("charxiv", reasoning_a=answer, reasoning_a_type=kind))
    assert words in item.question
    assert (item.id, item.for_judge) == ("17", "How many points?")
    assert credited(item, answer)
    with pytest.raises(UserError, match="reasoning_a_type 5 is none of 1, 2, 3, 4"):
        load("charxiv", tmp_path, row("charxiv", reasoning_a_type=5))


def test_charxiv_without_a_judge_says_so_once_and_with_its_score(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = write_rows(tmp_path / "charxiv.jsonl", [row("charxiv")])
    file = write_rows(tmp_path / "r.jsonl", [{"id": "17", "response": "<answer>3</answer>"}])
    done = grade_file(file, benchmark=f"charxiv={source}", reporter=Reporter())
    assert capsys.readouterr().err.count("only a judge") == 1
    (caveat,) = json.loads((done.path / "summary.json").read_text())["benchmarks"]["charxiv"]["caveats"]
    assert "only a judge" in caveat
    assert str(done).count("only a judge") == 1
