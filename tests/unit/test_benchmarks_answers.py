"""Benchmarks whose answers are no mathematics, ChartQA, DocVQA, OCRBench, TextVQA, RefCOCO: metrics, rows, scores."""

from __future__ import annotations

import base64
import io
import math
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from eval_suite import compare, grade_file
from eval_suite.benchmarks.tasks import BENCHMARKS
from eval_suite.metrics.aggregate import best_of_k, pass_at_k
from eval_suite.results.folder import EvalFolder
from evaluations import write_rows
from mmcorl.answers.relation_table import open_relation
from mmcorl.apps.analysis.statistics import mean_interval
from mmcorl.errors import UserError
from mmcorl.grading import Grader
from mmcorl.grading.items import Item, Response
from mmcorl.grading.official_metrics import METRICS, anls, contains, contains_formula, relaxed
from mmcorl.grading.vqa_accuracy import normalised, vqa_accuracy

SHORT = "\nAnswer the question using a single word or phrase."


def picture(width: int = 640, height: int = 480) -> str:
    file = io.BytesIO()
    Image.new("RGB", (width, height)).save(file, "PNG")
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()


def graded(item: Item, text: str, **more: Any) -> tuple[str | None, float | None, bool]:
    with Grader() as grader:
        result = grader.rule(item, Response(item.benchmark, item.id, 0, text, **more))
    return result.answer, result.score, result.rule


# --- metrics ------------------------------------------------------------------------------------------------


def distance(a: str, b: str) -> int:
    """Edit distance by its recurrence."""
    table = {(i, 0): i for i in range(len(a) + 1)} | {(0, j): j for j in range(len(b) + 1)}
    for i in range(1, len(a) + 1):
        for j in range(1, len(b) + 1):
            swap = table[i - 1, j - 1] + (a[i - 1] != b[j - 1])
            table[i, j] = min(table[i - 1, j] + 1, table[i, j - 1] + 1, swap)
    return table[len(a), len(b)]


def test_anls_by_hand_and_by_its_definition() -> None:
    assert anls("ITC Limited", ["itc limited"]) == 1.0
    assert anls("$ 975.00", ["975.00", "$975.00"]) == 1 - 1 / 8  # one space too many, of eight characters
    assert anls("abcd", ["abxy"]) == 0.5  # one half counts
    assert anls("abc", ["axy"]) == 0.0  # a third does not
    assert anls("a  b", ["a b"]) == 1.0  # runs of spaces are one, and the length is that of the texts as written
    assert anls("a  c", ["a b"]) == 1 - 1 / 4
    words = ["", "12", "12 Sixteenth St.", "1128 sixteenth st., N. W.", "IŁÖ", "straße", "STRASSE", "no  12"]
    for said in words:
        for known in combinations(words, 2):
            low = [" ".join(text.strip().lower().split()) for text in (said, *known)]
            each = [distance(low[0], low[n]) / (max(len(said.upper()), len(known[n - 1].upper())) or 1) for n in (1, 2)]
            expected = 1 - min(each)
            assert anls(said, known) == (expected if expected >= 0.5 else 0.0), (said, known)


def test_relaxed_accuracy_is_relative_to_the_known_answer() -> None:
    for said, known, right in [
        ("95", "100", True),
        ("94.99", "100", False),
        ("105", "100", True),
        ("100", "105", True),
        ("105.1", "100", False),
        # 95 is within 5 % of 100, and 100 not within 5 % of 95.
        ("100", "95", False),
        ("12%", "0.12", True),
        ("12%", "12", False),
        ("1,200", "1200", False),
        ("Yes", "yes", True),
        ("yes.", "yes", False),
        ("0", "0", True),
        ("0.0", "0", False),
        ("-3", "3", False),
        ("nan", "nan", False),
    ]:
        assert relaxed(said, [known]) == float(right), (said, known)
    # Votes are symmetric.
    with open_relation("number") as relation:
        assert relation.same("100", "95")
        assert relation.same("95", "100")


def test_ocrbench_contains_an_accepted_answer() -> None:
    assert contains("The word is CENTRE.", ["centre"]) == 1.0
    assert contains("cent\nre", ["cent re"]) == 1.0
    assert contains("center", ["centre", "centres"]) == 0.0
    assert contains_formula("$y_2 = -1$", ["y _ { 2 } = - 1\n", "y_2 = - 1\n"]) == 1.0
    assert contains_formula("$Y_2=-1$", ["y_2 = - 1"]) == 0.0
    assert set(METRICS) == {"anls", "relaxed", "contains", "contains_formula", "vqa"}


def test_vqa_accuracy_counts_the_other_people() -> None:
    # Who gave the answer does not count for himself: 3 of 10 give (3 * 2/3 + 7 * 1) / 10.
    for count, score in [(0, 0.0), (1, 0.3), (2, 0.6), (3, 0.9), (4, 1.0), (10, 1.0)]:
        assert vqa_accuracy("Nokia", ["nokia"] * count + ["other"] * (10 - count)) == pytest.approx(score)
    for a, b, equal in [
        ("The Coca-Cola.", "coca cola", True),
        ("dont", "don't", True),
        ("couldn'tve", "couldn't've", True),
        ("couldntve", "couldn't've", False),
        ("two", "2", True),
        ("1,200", "1200", True),
        ("a.m.", "am", True),
        ("3.5", "35", False),
        ("he's", "hes", False),  # a possessive s is parted before contractions are read
    ]:
        assert (normalised(a) == normalised(b)) is equal, (a, b)


def test_textvqa(tmp_path: Path) -> None:
    row = {"image_id": "0054c91397f2fe05", "question_id": 34602, "question": "what is the brand of this camera?"}
    row |= {"question_tokens": ["what"], "image": picture(20), "image_width": 1024, "image_height": 730}
    row |= {"flickr_original_url": "", "flickr_300k_url": "", "image_classes": ["Camera"], "set_name": "val"}
    row |= {"answers": ["dakota"] * 2 + ["nous les gosses"] * 8, "ocr_tokens": ["DAKOTA"]}
    loaded = BENCHMARKS["textvqa"].load(write_rows(tmp_path / "rows.jsonl", [row]))
    (item,) = loaded.items
    assert (loaded.notes, item.id, item.group) == (("partial: 1 of 5000 rows",), "34602", "0054c91397f2fe05")
    assert item.question == f"What is the brand of this camera?{SHORT}"
    assert graded(item, "Dakota.") == ("Dakota.", pytest.approx(0.6), True)
    assert graded(item, "Nous les gosses")[1:] == (1.0, True)
    assert graded(item, "Kodak")[1:] == (0.0, False)


# --- rows ---------------------------------------------------------------------------------------------------


def chart_rows() -> list[dict[str, Any]]:
    return [
        {"type": "human_test", "question": "How many food items?", "answer": "14", "image": picture(30)},
        {"type": "human_test", "question": "Is it blue?", "answer": "No", "image": picture(30)},
        {"type": "augmented_test", "question": "What share?", "answer": "12.5%", "image": picture(31)},
    ]


def test_chartqa(tmp_path: Path) -> None:
    benchmark = BENCHMARKS["chartqa"]
    loaded = benchmark.load(write_rows(tmp_path / "rows.jsonl", chart_rows()))
    first, second, third = loaded.items
    assert loaded.notes == ("partial: 3 of 2500 rows",)
    assert first.question == f"How many food items?{SHORT}"
    assert first.group == second.group != third.group
    assert [item.meta["type"] for item in loaded.items] == ["human", "human", "augmented"]
    assert graded(first, "14.5") == ("14.5", 1.0, True)
    assert graded(first, "13.2") == ("13.2", 0.0, False)
    assert graded(first, "<think>Maybe 3.</think>\n14") == ("14", 1.0, True)
    assert graded(first, "So <answer>14</answer>") == ("14", 1.0, True)
    assert graded(first, "There are 14.")[2] is False  # the whole response is the answer
    assert graded(third, "0.125")[2] is True
    assert graded(third, "It is $\\boxed{12.5\\%}$.") == ("12.5%", 1.0, True)
    assert graded(second, "\\boxed{\\text{no}}") == ("no", 1.0, True)
    assert graded(first, "") == (None, 0.0, False)
    scores = benchmark.sub_scores(loaded.items, {item.id: item is not second for item in loaded.items})
    assert scores["type"]["human"] == {"n": 2, "correct": 1, "accuracy": 0.5}
    bad = [chart_rows()[0] | {"type": "val"}]
    with pytest.raises(UserError, match="type 'val' is neither human nor augmented"):
        benchmark.load(write_rows(tmp_path / "bad.jsonl", bad))


def doc_row(number: int, answers: list[str], page: str = "1") -> dict[str, Any]:
    return {
        "questionId": str(number),
        "question": "What is it?",
        "question_types": ["form", "layout"],
        "image": picture(20),
        "docId": 7,
        "ucsf_document_id": "nkbl0226",
        "ucsf_document_page_no": page,
        "answers": answers,
        "data_split": "val",
    }


def test_docvqa_reports_the_mean_anls(tmp_path: Path) -> None:
    rows = [doc_row(1, ["San Diego", "san diego"]), doc_row(2, ["Paul"]), doc_row(3, ["1128 St."], page="2")]
    source = write_rows(tmp_path / "rows.jsonl", rows)
    items = BENCHMARKS["docvqa"].load(source).items
    assert (items[0].gold, items[0].accepted) == ("San Diego", ("san diego",))
    assert items[0].group == items[1].group != items[2].group
    # 1 - 1/9 for a letter of nine; Paula 1 - 1/5; nothing alike 0.
    said = {"1": "San Diega", "2": "Paula", "3": "none"}
    answers = [{"questionId": key, "id": key, "response": text} for key, text in said.items()]
    done = grade_file(
        write_rows(tmp_path / "said.jsonl", answers), benchmark=f"docvqa={source}", out=tmp_path / "graded"
    )
    scores = done.scores["docvqa"]
    mean = math.fsum([8 / 9, 4 / 5, 0]) / 3
    assert scores["score"] == pytest.approx(mean, abs=1e-15)
    assert (scores["correct"], scores["total"], scores["score_name"], scores["headline"]) == (2, 3, "ANLS", True)
    assert scores["sub_scores"]["question_types"]["form"]["accuracy"] == pytest.approx(mean)
    assert scores["sub_scores"]["mean"]["ANLS"]["n"] == 3
    # Two questions about one page are one unit: sums 8/9 + 4/5 of two, 0 of one.
    assert scores["clustered"]["clusters"] == 2
    table = (done.path / "results.md").read_text()
    assert f"{100 * mean:.2f}" in table
    assert "mean ANLS; 66.67% of the answers count as right" in table
    # The same again is no difference; a better one is, in hundredths.
    better = [{**row, "response": "San Diego" if row["id"] == "1" else row["response"]} for row in answers]
    other = grade_file(
        write_rows(tmp_path / "better.jsonl", better), benchmark=f"docvqa={source}", out=tmp_path / "better"
    )
    (paired,) = compare(done, other).benchmarks
    assert paired.difference == pytest.approx((1.00 - 0.89) / 3)
    with pytest.raises(UserError, match="only the challenge's server scores"):
        BENCHMARKS["docvqa"].load(write_rows(tmp_path / "test.jsonl", [doc_row(1, [])]))


def test_ocrbench(tmp_path: Path) -> None:
    row = {"dataset": "IIIT5K", "question": "what is written in the image?", "image": picture(20)}
    formula = "Handwritten Mathematical Expression Recognition"
    rows = [
        row | {"question_type": "Regular Text Recognition", "answer": ["CENTRE"]},
        row | {"question_type": "Artistic Text Recognition", "answer": "ab c"},
        row | {"dataset": "HME100k", "question_type": formula, "answer": ["3 2 = \\boxed { 3 }\n", "3 2 = \\boxed3\n"]},
        row | {"question_type": "Doc-oriented VQA", "answer": ["4", "four"]},
    ]
    loaded = BENCHMARKS["ocrbench"].load(write_rows(tmp_path / "rows.jsonl", rows))
    texts = ["The image says Centre", "ABC", "$32 = \\boxed{3}$", "It is four."]
    results = [graded(item, text) for item, text in zip(loaded.items, texts, strict=True)]
    assert [right for *_, right in results] == [True, False, True, True]
    assert results[2][0] == "$32 = \\boxed{3}$"
    assert graded(loaded.items[0], "<think>centre") == (None, 0.0, False)
    correct = {item.id: right for item, (*_, right) in zip(loaded.items, results, strict=True)}
    official = BENCHMARKS["ocrbench"].sub_scores(loaded.items, correct)["official"]
    assert {key: (cell["correct"], cell["n"]) for key, cell in official.items()} == {
        "Text Recognition": (1, 2),
        formula: (1, 1),
        "Doc-oriented VQA": (1, 1),
        "Final Score": (3, 4),
    }


def refcoco_row(number: int, bbox: list[float], answers: list[str], **more: Any) -> dict[str, Any]:
    return {
        "question_id": str(number),
        "image": picture(),
        "question": "Caption the area.",
        "answer": answers,
        "segmentation": [1.0] * 8,
        "bbox": bbox,
        "iscrowd": 0,
        "file_name": f"COCO_train2014_000000144180_{number}.jpg",
        **more,
    }


def test_refcoco_asks_every_expression_and_scores_by_overlap(tmp_path: Path) -> None:
    rows = [refcoco_row(11, [64.0, 48.0, 320.0, 240.0], ["blue bus", "front bus", "blue bus"])]
    rows.append(refcoco_row(12, [600.0, 0.0, 40.5, 480.0], ["right edge"]))
    source = write_rows(tmp_path / "testA.jsonl", rows)
    loaded = BENCHMARKS["refcoco_testa"].load(source)
    assert [item.id for item in loaded.items] == ["11_0", "11_1", "11_2", "12_0"]
    bus, edge = loaded.items[0], loaded.items[3]
    assert bus.question.endswith("the region this sentence describes: blue bus")
    assert (bus.gold, edge.gold) == ("[100, 100, 600, 600]", "[937.5, 0, 1000, 1000]")  # cut at the picture's edge
    assert bus.group == edge.group == "000000144180"
    assert bus.images[0] is loaded.items[2].images[0]
    # The same box in pixels of two sizes, in thousandths, and with y first; half of it is 0.5 and counts.
    for text, coordinates in [
        ("[64, 48, 384, 288]", (640.0, 480.0, "xy")),
        ("(32, 24), (192, 144)", (320.0, 240.0, "xy")),
        ('```json\n[{"bbox_2d": [100, 100, 600, 600], "label": "bus"}]\n```', (1000.0, 1000.0, "xy")),
        ("[0.1, 0.1, 0.6, 0.6]", (1.0, 1.0, "xy")),
    ]:
        assert graded(bus, text, coordinates=coordinates) == ("[100, 100, 600, 600]", 1.0, True)
    assert graded(bus, "[200, 100, 400, 600]", coordinates=(1000, 1000, "yx"))[0] == "[100, 200, 600, 400]"
    assert graded(bus, "[100, 100, 350, 600]", coordinates=(1000, 1000, "xy"))[1:] == (0.5, True)
    assert graded(bus, "[100, 100, 349, 600]", coordinates=(1000, 1000, "xy"))[1:] == (249 / 500, False)
    assert graded(bus, "the bus", coordinates=(1000, 1000, "xy")) == (None, 0.0, False)
    # Of several boxes the first counts, however they are written.
    for text in (
        '[{"bbox_2d": [100, 100, 600, 600]}, {"bbox_2d": [0, 0, 90, 90]}]',
        "<box>[[100, 100, 600, 600], [0, 0, 90, 90]]</box>",
        "At (100, 100), (600, 600) or (0, 0), (90, 90), (5, 5).",
    ):
        assert graded(bus, text, coordinates=(1000, 1000, "xy"))[0] == "[100, 100, 600, 600]", text
    assert graded(bus, "[[0, 0, 90, 90], [100, 100, 600, 600]]", coordinates=(1000, 1000, "xy"))[1:] == (0.0, False)
    with pytest.raises(UserError, match="nothing says how the model writes them"):
        graded(bus, "[100, 100, 600, 600]")
    for change, words in [
        ({"bbox": [1.0, 2.0]}, "is of points, while answers are of form 'box'"),
        ({"bbox": [700.0, 10.0, 20.0, 20.0]}, "lies outside of the picture of 640 x 480 pixels"),
        ({"bbox": None}, "column 'bbox' is empty"),
    ]:
        with pytest.raises(UserError, match=words):
            BENCHMARKS["refcoco_testa"].load(write_rows(tmp_path / "bad.jsonl", [rows[0] | change]))


def test_the_mixed_splits_of_refcoco_say_so() -> None:
    caveats = {name: BENCHMARKS[name].caveats([], {}) for name in BENCHMARKS if "refcoco" in name}
    assert [name for name in caveats if caveats[name]] == ["refcoco_val", "refcocog_val"]
    assert "UNC's (3,811 objects) and Google's (5,000)" in caveats["refcoco_val"][0]


def test_a_file_of_answers_to_refcoco_in_pixels_of_the_picture(tmp_path: Path) -> None:
    source = write_rows(tmp_path / "testA.jsonl", [refcoco_row(11, [64.0, 48.0, 320.0, 240.0], ["bus", "front bus"])])
    said = [{"id": "11_0", "response": "[64, 48, 384, 288]"}, {"id": "11_1", "response": "[64, 48, 384, 100]"}]
    file = write_rows(tmp_path / "said.jsonl", said)
    with pytest.raises(UserError, match="name it with `coordinates`"):
        grade_file(file, benchmark=f"refcoco_testa={source}", out=tmp_path / "refused")
    done = grade_file(
        file, benchmark=f"refcoco_testa={source}", coordinates="pixels", out=tmp_path / "graded", aggregation="pass@1"
    )
    scores = done.scores["refcoco_testa"]
    assert (scores["correct"], scores["n"], scores["full_n"], scores["score_name"]) == (1, 2, 5657, "IoU")
    assert scores["score"] == pytest.approx((1 + 52 / 240) / 2, abs=1e-4)
    assert scores["headline"] is False
    assert scores["judge_pending"] == 0
    # Again from the files alone: without the picture, and without the option.
    (done.path / "rule.jsonl").unlink()
    assert grade_file(done.path).scores["refcoco_testa"] == scores
    with pytest.raises(UserError, match="is for rows of your own"):
        grade_file(file, benchmark=f"refcoco_testa={source}", relation="box")


# --- rows of one's own ----------------------------------------------------------------------------------------


def own(tmp_path: Path, rows: list[dict[str, Any]], **options: Any) -> dict[str, Any]:
    done = grade_file(write_rows(tmp_path / "own.jsonl", rows), out=tmp_path / "graded", **options)
    return done.scores["own"]


def test_own_rows_by_a_relation(tmp_path: Path) -> None:
    rows = [
        {"id": "1", "gold": ["Berlin", "Bern"], "response": "bern."},
        {"id": "2", "gold": "Rome", "response": "Rom"},
    ]
    scores = own(tmp_path, rows, relation="edit", threshold=0.7)
    assert (scores["correct"], scores["score_name"]) == (2, "edit similarity")
    assert scores["score"] == pytest.approx((4 / 5 + 3 / 4) / 2)
    assert own(tmp_path, rows, relation="text")["correct"] == 1
    assert "score" not in own(tmp_path, rows, relation="text")
    with pytest.raises(UserError, match="add `relation`"):
        own(tmp_path, rows, threshold=0.7)
    with pytest.raises(UserError, match="add `relation`"):
        own(tmp_path, rows, relation="text", threshold=0.7)
    with pytest.raises(UserError, match="are no places"):
        own(tmp_path, rows, relation="text", coordinates="pixels")


def test_own_rows_of_places(tmp_path: Path) -> None:
    box = {"id": "1", "gold": [10, 10, 60, 60], "response": "[10, 10, 60, 60]", "width": 100, "height": 200}
    assert own(tmp_path, [box], relation="box", coordinates="pixels")["correct"] == 1
    (item,) = EvalFolder(tmp_path / "graded").items()
    assert item.gold == "[100, 50, 600, 300]"
    # Known answers are thousandths where the row says how its response is written.
    stored = {"id": "1", "gold": "[100, 50, 600, 300]", "response": "[10, 10, 60, 60]", "coordinates": [100, 200, "xy"]}
    assert own(tmp_path, [stored], relation="box")["correct"] == 1
    # A point is right inside a known box, and near a known point.
    points = [{"id": "1", "gold": [10, 10, 60, 60], "response": "[60, 11]", "coordinates": [1000, 1000, "xy"]}]
    points.append({"id": "2", "gold": "[500, 500]", "response": "[540, 530]", "coordinates": [1000, 1000, "xy"]})
    assert own(tmp_path, points, relation="point")["correct"] == 2
    assert own(tmp_path, points, relation="point", threshold=0.96)["correct"] == 1
    for row, words in [
        ({**box, "width": None}, "the size of the picture is not known"),
        ({**box, "gold": [10, 10, 60, 260]}, "which is no box in pixels of a picture"),
        # Of a picture of 100 x 200, before it was turned.
        ({**box, "gold": [60, 10, 160, 60]}, "which is no box in pixels of a picture"),
        ({**box, "gold": "left of the tree"}, "which is no box in pixels of a picture"),
        ({**box, "coordinates": [100, 200]}, "give .x at the right edge, y at the lower one, 'xy'."),
    ]:
        with pytest.raises(UserError, match=words):
            own(tmp_path, [row], relation="box", coordinates="pixels")


def test_known_boxes_by_left_top_width_and_height(tmp_path: Path) -> None:
    box = {"id": "1", "gold": [10, 20, 50, 60], "response": "[10, 20, 60, 80]", "width": 100, "height": 200}
    how: dict[str, Any] = {"relation": "box", "coordinates": "pixels"}
    assert own(tmp_path, [box], **how, corners="xywh")["score"] == 1.0
    flat = {**box, "gold": [60, 20, 30, 60]}
    with pytest.raises(UserError, match=r"without area: .*corners=xywh"):
        own(tmp_path, [flat], **how)
    assert own(tmp_path, [flat], **how, corners="xywh")["correct"] == 0
    with pytest.raises(UserError, match="corners=xywh is for known boxes"):
        own(tmp_path, [{"id": "1", "gold": "5", "response": "5"}], corners="xywh")


@pytest.mark.parametrize("relation", [None, "math", "edit", "mine:near"])
def test_numbers_as_known_answers_are_a_place_or_several_answers(
    relation: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine.py").write_text("def near(a, b) -> float:\n    return 1.0\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    for gold, named in (([8, 16, 26, 37], "relation=box"), ([8.5, 16], "relation=point")):
        with pytest.raises(UserError, match=rf"row 1 of .* \(counted from 1\) holds \[8.*{named}"):
            own(tmp_path, [{"id": "1", "gold": gold, "response": "8"}], relation=relation)
    if relation not in (None, "math"):
        texts = {"id": "1", "gold": ["8", "16"], "response": "\\boxed{16}"}
        assert own(tmp_path, [texts], relation=relation)["correct"] == 1
    else:
        with pytest.raises(UserError, match="relation=box, boxes, point or points"):
            own(tmp_path, [{"id": "1", "gold": [[8, 16, 26, 37], [1, 2, 3, 4]], "response": "8"}], relation=relation)


def test_several_responses_of_places_vote_by_their_medoid(tmp_path: Path) -> None:
    said = ["[500, 500, 900, 900]", "[120, 100, 320, 300]", "[110, 100, 310, 300]", "[100, 100, 300, 300]"]
    rows = [{"id": "1", "gold": "[100, 100, 300, 300]", "response": said}]
    voted = own(tmp_path, rows, relation="box", coordinates="thousandths", aggregation="maj@4")
    assert (voted["correct"], voted["score"], voted["ties"]) == (1, pytest.approx(190 / 210), 0)
    best = own(tmp_path, rows, relation="box", coordinates="thousandths", aggregation="pass@4")
    assert (best["score"], best["accuracy"]) == (1.0, 1.0)


# --- aggregation ----------------------------------------------------------------------------------------------


def test_the_best_of_k_scores_is_their_mean_over_all_sets() -> None:
    scores = [0.2, 0.9, 0.0, 0.9, 0.5]
    for k in range(1, 6):
        sets = list(combinations(scores, k))
        assert best_of_k(scores, k) == pytest.approx(math.fsum(map(max, sets)) / len(sets))
    share = pass_at_k(5, 2, 3)
    assert best_of_k([0, 1, 0, 1, 0], 3) == pytest.approx(share.correct / share.total)


def test_the_interval_of_a_mean_by_hand() -> None:
    # Scores 0, 0.5, 1 of three items: mean 0.5, variance of the mean 3/2 * (0.25 + 0 + 0.25) / 9.
    low, high = mean_interval([(0.0, 1), (0.5, 1), (1.0, 1)]) or (0.0, 0.0)
    reach = 1.959963984540054 * math.sqrt(1.5 * 0.5 / 9)
    assert (low, high) == (max(0.0, 0.5 - reach), min(1.0, 0.5 + reach))
    assert mean_interval([(0.7, 3)]) is None
