"""Places asked of checkpoints: the coordinates that are asked for, stored and read, family by family."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from eval_suite import evaluate, grade_file
from eval_suite.evaluation.periodic import held_out
from eval_suite.evaluation.pipeline import prepare
from eval_suite.options import EvalOptions
from eval_suite.reporter import SILENT
from eval_suite.results.folder import EvalFolder
from evaluations import Cli, math500, trained_copy, write_rows
from mmcorl.cli.main import main
from mmcorl.errors import UserError
from mmcorl.grading.items import Item
from mmcorl.run.settings import BenchmarkSet
from mmcorl.types import Completion
from model_adapters.registry import adapter_for
from runs import changed, records, small_config, write_config

SIZE = (90, 61)


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    """Two expressions for a box of 9..45 x 6.1..30.5 pixels, which are 100..500 thousandths."""
    file = io.BytesIO()
    Image.new("RGB", SIZE, "red").save(file, "PNG")
    image = "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()
    row = {"question_id": "7", "image": image, "question": "Caption it.", "answer": ["bus", "blue bus"], "iscrowd": 0}
    row |= {"segmentation": [0.0] * 8, "bbox": [9, 6.1, 36, 24.4], "file_name": "COCO_train2014_000000144180_5.jpg"}
    return write_rows(tmp_path / "testA.jsonl", [row])


@pytest.mark.slow
def test_responses_keep_the_coordinates_of_their_family(
    rows: Path, tiny_checkpoints: Mapping[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def run(family: str, **options: Any) -> EvalFolder:
        adapter = type(adapter_for(str(tiny_checkpoints[family])))
        length = adapter.prompt_length

        def spy(self: Any, processor: Any, text: str, *rest: Any, **more: Any) -> int:
            asked.append(text)
            return length(self, processor, text, *rest, **more)

        with monkeypatch.context() as patch:
            patch.setattr(adapter, "prompt_length", spy)
            out = tmp_path / f"{family}{len(options)}"
            done = evaluate(
                tiny_checkpoints[family], f"refcoco_testa={rows}", out, max_new_tokens=3, device="cpu", **options
            )
        return done.folder

    # Qwen2.5-VL writes pixels of the image as its processor resized it: whole squares of 28 pixels.
    folder = run("qwen2_5_vl")
    from transformers import AutoProcessor

    tool = AutoProcessor.from_pretrained(tiny_checkpoints["qwen2_5_vl"]).image_processor
    (response, _) = folder.responses()
    assert response.coordinates is not None
    right, bottom, order = response.coordinates
    square = tool.patch_size * tool.merge_size
    assert (right % square, bottom % square, order) == (0, 0, "xy")
    assert max(abs(right - SIZE[0]), abs(bottom - SIZE[1])) <= square
    assert asked[-1] == "Please provide the bounding box coordinate of the region this sentence describes: blue bus"
    # A box of these pixels is right without model and picture.
    said = {"text": f"{[right / 10, bottom / 10, right / 2, bottom / 2]}", "finish_reason": "stop"}
    lines = [json.loads(line) for line in (folder.path / "responses.jsonl").read_text().splitlines()]
    assert lines[0]["coordinates"] == [right, bottom, "xy"]
    folder.replace_rows("responses.jsonl", [row | said for row in lines], stale=["rule.jsonl"])
    scores = grade_file(folder.path).scores["refcoco_testa"]
    assert (scores["correct"], scores["score"]) == (2, pytest.approx(1.0, abs=1e-3))

    assert [response.coordinates for response in run("internvl3_5").responses()] == [(1000.0, 1000.0, "xy")] * 2
    # Nobody says how Gemma-3 writes them, so it has to be said; then it is asked for them in words.
    with pytest.raises(UserError, match="how Gemma-3 writes them is not known: name it with `coordinates`"):
        run("gemma3")
    told = run("gemma3", coordinates="thousandths_yx")
    assert [response.coordinates for response in told.responses()] == [(1000.0, 1000.0, "yx")] * 2
    words = "blue bus Give the bounding box as [y1, x1, y2, x2] in thousandths of the image's height and width."
    assert asked[-1].endswith(words)
    assert told.manifest["generation"]["refcoco_testa"]["coordinates"] == "thousandths_yx"
    assert "coordinates" not in folder.manifest["generation"]["refcoco_testa"]


@pytest.mark.slow
def test_own_rows_with_a_relation(rows: Path, tiny_checkpoints: Mapping[str, Path], tmp_path: Path, cli: Cli) -> None:
    own = write_rows(tmp_path / "own.jsonl", [{"question": "Which word?", "answer": "Rome"}])
    model = tiny_checkpoints["qwen2"]
    common = ("--max-new-tokens", 2, "--device", "cpu")
    out = tmp_path / "own"
    cli("eval", model, f"mine={own}", "--relation", "edit", "--threshold", 0.9, "--out", out, *common)
    (item,) = EvalFolder(out).items()
    assert (item.relation, item.threshold, item.reading) == ("edit", 0.9, "whole")
    said = cli.refused("eval", model, f"gsm8k={own}", "--relation", "edit", "--out", tmp_path / "x", *common)
    assert "--relation edit is for rows of your own" in said
    assert "leave --relation" in cli.refused("grade", out, "--relation", "edit")


def test_own_rows_are_compared_as_the_checkpoint_was_trained(
    rows: Path, tiny_checkpoints: Mapping[str, Path], tmp_path: Path
) -> None:
    row = json.loads(rows.read_text())
    own = write_rows(tmp_path / "own.jsonl", [{name: row[name] for name in ("image", "question", "bbox")}])
    plain = str(tiny_checkpoints["qwen2_5_vl"])
    boxes = trained_copy(Path(plain), tmp_path / "boxes", answers={"relation": "box", "threshold": 0.7})
    places = ("columns.answer=bbox", "places.unit=pixels", "places.corners=xywh")

    def planned(model: str, source: Path = own, data_set: tuple[str, ...] = places, **changes: Any) -> tuple[Item, str]:
        options = EvalOptions(data_set=data_set, max_new_tokens=8, **changes)
        _, loaded, _ = prepare(model, tmp_path / "out", f"mine={source}", options, SILENT)
        return loaded["mine"].items[0], " ".join(loaded["mine"].notes)

    item, notes = planned(boxes)
    assert (item.relation, item.threshold, item.gold) == ("box", 0.7, "[100, 100, 500, 500]")
    assert "by relation box: IoU of at least 0.7, as trained" in notes
    assert planned(boxes, threshold=0.9)[0].threshold == 0.9
    assert planned(plain, like=boxes)[0].threshold == 0.7
    item, notes = planned(boxes, relation="box")
    assert (item.threshold, "as trained" in notes) == (None, False)
    with pytest.raises(UserError, match=r"no known answer .*compared by box, as the checkpoint was trained"):
        planned(boxes, Path("synthetic:visual"), ("size=2",))
    with pytest.raises(UserError, match=r"set places.unit.*compared by box, as the checkpoint was trained"):
        planned(boxes, data_set=("columns.answer=bbox",))
    # Four numbers are a place, too, where nothing says how they are compared.
    for model, changes in ((plain, {}), (boxes, {"relation": "math"})):
        with pytest.raises(UserError, match="a place or 4 answers"):
            planned(model, data_set=("columns.answer=bbox",), **changes)
    known = Path(boxes) / "mmcorl.json"
    known.write_text(known.read_text().replace('"box"', '"mine:near"'))
    with pytest.raises(UserError, match="name it with relation=mine:near"):
        planned(boxes)


def test_a_benchmark_of_places_validates_a_run_that_reads_places(rows: Path) -> None:
    part = held_out(BenchmarkSet(name="refcoco_testa", source=str(rows)))
    assert part.form == "box"
    assert part.grade is not None
    for answer, right in (("[100, 100, 500, 500]", True), ("[100, 100, 290, 500]", False), (None, False)):
        assert part.grade(part.prompts[0], Completion("...", answer, 3, "stop")) is right


@pytest.mark.slow
def test_a_run_validated_by_places(
    rows: Path, tiny_checkpoints: Mapping[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    models: dict[str, Any] = {"a": tiny_checkpoints["qwen2_5_vl"], "b": tiny_checkpoints["internvl3_5"]}
    texts = math500(tmp_path / "math500.jsonl", ["1?", "2?"])
    sets = [{"name": "refcoco_testa", "source": str(rows)}, {"name": "math500", "source": str(texts)}]
    benchmark = {"benchmarks": sets, "every": 1}
    config = changed(small_config(models), steps=1, validation=benchmark)
    file = str(write_config(tmp_path, config))
    assert main(["train", file, "--run-dir", str(tmp_path / "refused"), "--quiet"]) == 2
    assert "set answers.relation to box" in capsys.readouterr().err
    words = ["answers.relation=box", "reward.kind=similarity"]
    assert main(["train", file, *words, "--run-dir", str(tmp_path / "run"), "--quiet"]) == 0
    # Beside places, texts without a picture keep their own answers.
    assert {line["set"] for line in records(tmp_path / "run", "validation.jsonl")} == {"refcoco_testa", "math500"}
