"""Loading a benchmark: every way in, what is checked, what is refused and in which words."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from eval_suite.benchmarks.base import by_field, cell, schema_hash
from eval_suite.benchmarks.tasks import BENCHMARKS
from evaluations import write_rows
from mmcorl.errors import UserError
from mmcorl.grading.items import Item
from paths import CASES, FIXTURES

FILES = {file.stem: file for file in sorted(FIXTURES.iterdir()) if file.suffix in (".parquet", ".jsonl")}


def rows_of(name: str) -> list[dict]:
    return [json.loads(line) for line in FILES[name].read_text(encoding="utf-8").splitlines()]


def refusal(name: str, source: Path | str | None) -> str:
    with pytest.raises(UserError) as caught:
        BENCHMARKS[name].load(source)
    sentence = str(caught.value)
    assert "\n" not in sentence
    return sentence


def test_the_table_knows_each_benchmark_under_its_own_name():
    for name in BENCHMARKS:
        benchmark = BENCHMARKS[name]
        assert benchmark.name == name
        assert benchmark.rows > 0
        assert benchmark.licence
        assert benchmark.samples == (8 if name in ("amc", "amc_release") else 1)
    # The denominators of the paper's tables.
    expected = {"mathvision": 3040, "mathverse": 3940, "mathvista": 1000, "wemath": 1740, "gpqa_diamond": 198}
    assert {name: BENCHMARKS[name].rows for name in expected} == expected

    with pytest.raises(UserError, match=r"benchmark 'mathvison' is unknown: did you mean 'mathvision'\?"):
        BENCHMARKS["mathvison"]


def test_every_fixture_has_the_official_schema_and_is_called_partial():
    for name, file in FILES.items():
        benchmark, loaded = BENCHMARKS[name], BENCHMARKS[name].load(file)
        assert loaded.schema_hash == benchmark.schema_hash
        assert loaded.notes == (f"partial: {len(loaded.items)} of {benchmark.rows} rows",)
        assert all(item.benchmark == name and item.gold and item.question for item in loaded.items)
        assert len({item.fingerprint for item in loaded.items}) == loaded.rows == len(loaded.items)
        json.dumps([dict(item.meta) for item in loaded.items])


def test_rows_are_the_same_from_a_file_a_folder_a_glob_a_saved_set_and_a_hub_snapshot(tmp_path):
    benchmark = BENCHMARKS["mathvista"]
    expected = [item.fingerprint for item in benchmark.load(FILES["mathvista"]).items]

    folder = tmp_path / "plain" / "data"
    folder.mkdir(parents=True)
    shutil.copy(FILES["mathvista"], folder / "testmini-00000-of-00001.parquet")
    shutil.copy(FILES["mathvision"], folder / "test-00000-of-00001.parquet")  # another split, not to be mixed in

    from datasets import load_dataset

    loaded = load_dataset("parquet", data_files=str(FILES["mathvista"]), split="train")
    loaded.save_to_disk(str(tmp_path / "saved"))

    snapshot = tmp_path / "snapshot"
    shutil.copytree(folder, snapshot / "data")
    card = "---\nconfigs:\n- config_name: default\n  data_files:\n  - {split: test, path: data/test-*}\n"
    (snapshot / "README.md").write_text(f"{card}  - {{split: testmini, path: data/testmini-*}}\n---\n")

    sources = [folder.parent, str(folder / "testmini-*.parquet"), tmp_path / "saved"]
    for source in sources:
        assert [item.fingerprint for item in benchmark.load(source).items] == expected, source
    # The two files of the snapshot have different columns, so only the named configuration can be read.
    (snapshot / "data" / "test-00000-of-00001.parquet").unlink()
    shutil.copy(FILES["mathvista"], snapshot / "data" / "test-00000-of-00001.parquet")
    assert [item.fingerprint for item in benchmark.load(snapshot).items] == expected


def test_repository_files_name_images_by_path_and_rows_by_id(tmp_path):
    # MathVista's repository: data/testmini.json is an object of rows by pid, images lie beside the folder.
    from datasets import Image, load_dataset

    stored = load_dataset("parquet", data_files=str(FILES["mathvista"]), split="train")
    stored = stored.cast_column("decoded_image", Image(decode=False))
    (tmp_path / "data").mkdir()
    (tmp_path / "images").mkdir()
    rows = {}
    for row in stored:
        (tmp_path / row["image"]).write_bytes(row.pop("decoded_image")["bytes"])
        del row["query"]
        rows[row["pid"]] = row
    (tmp_path / "data" / "testmini.json").write_text(json.dumps(rows))

    loaded = BENCHMARKS["mathvista"].load(tmp_path / "data" / "testmini.json")
    official = BENCHMARKS["mathvista"].load(FILES["mathvista"])
    assert [item.fingerprint for item in loaded.items] == [item.fingerprint for item in official.items]
    assert "column 'image' is read as 'decoded_image'" in loaded.notes
    assert "schema differs from AI4Math/MathVista: without query" in loaded.notes
    assert loaded.schema_hash != official.schema_hash

    (tmp_path / rows["1"]["image"]).unlink()
    assert "image file 'images/1.jpg' cannot be read" in refusal("mathvista", tmp_path / "data" / "testmini.json")


def test_a_limit_takes_the_first_rows_and_ids_do_not_depend_on_which_rows_are_there(tmp_path):
    loaded = BENCHMARKS["wemath"].load(FILES["wemath"], limit=4)
    assert [item.id for item in loaded.items] == ["94", "817", "102", "9"]
    assert loaded.notes == ("partial: 10 of 1740 rows", "limited: the first 4 of 10 rows")
    ids = {item.question: item.id for item in BENCHMARKS["gsm8k"].load(FILES["gsm8k"]).items}
    part = BENCHMARKS["gsm8k"].load(write_rows(tmp_path / "part.jsonl", rows_of("gsm8k")[:0:-1]))
    assert {item.question: item.id for item in part.items}.items() < ids.items()


COMMIT = "0123456789abcdef0123456789abcdef01234567"


def cached(cache: Path, rows: int) -> None:
    """Put so many AMC rows where `datasets` keeps what it downloaded at COMMIT."""
    import datasets
    from datasets.arrow_writer import ArrowWriter

    folder = cache / "AI-MO___aimo-validation-amc" / "default" / "0.0.0" / COMMIT
    folder.mkdir(parents=True)
    stored = [{"id": number, "problem": f"{number}+1?", "answer": number + 1.0, "url": ""} for number in range(rows)]
    features = datasets.Dataset.from_list(stored).features
    with ArrowWriter(path=str(folder / "aimo-validation-amc-train.arrow"), features=features) as writer:
        for row in stored:
            writer.write(row)
        writer.finalize()
    name = "aimo-validation-amc"
    split = {"name": "train", "num_examples": rows, "num_bytes": 1, "dataset_name": name}
    about = {"dataset_name": name, "config_name": "default", "version": "0.0.0", "splits": {"train": split}}
    datasets.DatasetInfo(features=features, **about).write_to_directory(str(folder))


def test_the_hub_gives_the_commit_and_all_rows(tmp_path, monkeypatch):
    assert refusal("mathvision", None).startswith("mathvision cannot be loaded from the hub as MathLLMs/MathVision (")
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path)
    cached(tmp_path, 83)
    loaded = BENCHMARKS["amc"].load()
    assert (loaded.revision, loaded.rows, loaded.notes) == (COMMIT, 83, ())
    assert loaded.schema_hash == BENCHMARKS["amc"].schema_hash
    shutil.rmtree(tmp_path)
    cached(tmp_path, 80)
    assert "has 80 rows but amc has 83, so its scores would not compare" in refusal("amc", None)


def test_copies_that_cannot_be_the_benchmark_are_refused(tmp_path):
    amc, math = rows_of("amc")[0], rows_of("math500")
    (tmp_path / "empty").mkdir()
    files = {name: tmp_path / f"{name}.json{'l' * (name != 'object')}" for name in ("none", "object", "more", "twice")}
    files["none"].write_text("")
    files["object"].write_text("{}")
    write_rows(files["more"], [{**amc, "id": number} for number in range(84)])
    write_rows(files["twice"], [*math, math[0]])
    (tmp_path / "broken.jsonl").write_text(FILES["amc"].read_text() + "{broken\n")
    for name, source, words in (
        ("mathvision", "nowhere/at_all.parquet", "does not exist; check the path"),
        ("mathvision", "nowhere/*.parquet", "no file matches the data source"),
        ("amc", tmp_path / "empty", "holds no .parquet, .jsonl, .json file"),
        ("amc", files["none"], "has no rows; amc has 83"),
        ("amc", files["object"], "it must be a list of objects"),
        ("amc", files["more"], "has 84 rows but amc has 83; give the split 'train' alone"),
        ("amc", tmp_path / "broken.jsonl", "row 3 of"),
        ("math500", files["twice"], "has the math500 row 'test/precalculus/1.json' twice"),
        ("mathvision", FILES["wemath"], "has no column 'id', 'options', 'decoded_image', 'level', 'subject', which "),
    ):
        assert words in refusal(name, source)


def test_a_row_that_cannot_be_read_refuses_the_copy(tmp_path):
    for name, change, words in json.loads((CASES / "benchmarks.json").read_text(encoding="utf-8"))["unreadable_rows"]:
        first, *others = rows_of(name)
        source = write_rows(tmp_path / "changed.jsonl", [first | change, *others])
        assert words.format(source=source) in refusal(name, source)


def test_further_columns_are_noted_unless_the_benchmark_has_many_that_nobody_reads(tmp_path):
    amc, gpqa = rows_of("amc"), rows_of("gpqa_diamond")
    more = BENCHMARKS["amc"].load(write_rows(tmp_path / "amc.jsonl", [{**row, "year": 2022} for row in amc]))
    assert more.notes[1:] == ("schema differs from AI-MO/aimo-validation-amc: with the further year",)
    assert more.schema_hash != BENCHMARKS["amc"].schema_hash
    many = BENCHMARKS["gpqa_diamond"].load(
        write_rows(tmp_path / "gpqa.jsonl", [{**row, "Writer": "x"} for row in gpqa])
    )
    assert many.notes == ("partial: 2 of 198 rows",)
    assert many.schema_hash == BENCHMARKS["gpqa_diamond"].schema_hash
    assert schema_hash(["a", "b"]) == schema_hash(["b", "a"]) != schema_hash(["a", "c"])


def test_sub_scores_count_lists_once_per_entry_and_leave_unscored_items_out():
    meta = [{"s": ["x", "y", "x"]}, {"s": ["y"], "t": 3}, {"s": ["x"]}, {"t": 3}]
    items = [Item("b", str(number), "?", "1", meta=fields) for number, fields in enumerate(meta, 1)]
    # x: item 1. y: items 1 and 2. t=3: items 2 and 4. Item 3 has no score; nothing has u.
    assert by_field(items, {"1": 1, "2": 0.5, "4": True}, ["s", "t", "u"]) == {
        "s": {"x": {"n": 1, "correct": 1, "accuracy": 1.0}, "y": {"n": 2, "correct": 1.5, "accuracy": 0.75}},
        "t": {"3": {"n": 2, "correct": 1.5, "accuracy": 0.75}},
    }
    assert cell(0, 0) == {"n": 0, "correct": 0, "accuracy": None}
    assert isinstance(cell(0.1 + 0.2 + 0.7, 3)["correct"], int)
