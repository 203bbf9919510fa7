"""`mmcorl diversity` and `mmcorl pair` as they are given: checkpoints, evaluation folders and files of responses."""

from __future__ import annotations

import csv
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from eval_suite.response_sources import lineage, parse_source
from mmcorl.cli.main import main
from mmcorl.errors import UserError
from runs import taught

GOLDS = ["1", "2", "3", "4", "5", "6"]


def write(
    path: Path, answers: Sequence[str | None], golds: Sequence[str] | None = GOLDS, **more: Sequence[Any]
) -> Path:
    """A file of responses; None is one that commits to nothing."""
    rows = []
    for number, answer in enumerate(answers):
        row = {"id": f"p{number}", "question": f"What is number {number}?"}
        row["response"] = "I do not know" if answer is None else f"So \\boxed{{{answer}}}"
        if golds is not None:
            row["gold"] = golds[number]
        rows.append(row | {name: values[number] for name, values in more.items()})
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Any:
    def started(*argv: str | Path, status: int = 0) -> tuple[str, str]:
        capsys.readouterr()
        code = main([str(part) for part in argv])
        out, err = capsys.readouterr()
        assert code == status, err
        return out, err

    return started


@pytest.fixture
def files(tmp_path: Path) -> Mapping[str, Path]:
    # a: right on p0 p1 p2, wrong 9 on p3 p4, nothing on p5. b: right on p0 p3, 9.0 on p4, 7 on the others, none on p5.
    return {
        "a": write(tmp_path / "a.jsonl", ["1", "2", "3", "9", "9", None]),
        "b": write(tmp_path / "b.jsonl", ["1", "7", "7", "4", "9.0", None]),
    }


# --- files ----------------------------------------------------------------------------------------------------


def test_two_files_become_the_four_cells(run: Any, files: Mapping[str, Path]) -> None:
    told = json.loads(run("diversity", files["a"], files["b"], "--json", "--quiet")[0])
    (pair,) = told["pairs"]
    # p0 both; p1 p2 only a; p3 only b; p4 p5 neither, of which p4 alike (9 and 9.0), while nothing agrees on p5.
    assert pair["cells"] == {"both": 1, "only_a": 2, "only_b": 1, "neither": 2, "same_wrong": 1}
    assert pair["agreement"]["value"] == pytest.approx(2 / 6)
    # p_o = 3/6; p_e = (3*2 + 3*4)/36 = 1/2; kappa 0.
    assert pair["kappa"]["value"] == pytest.approx(0)
    assert pair["kind"] == "unstated"
    assert any("without a readable answer" in note and "a 1, b 1" in note for note in told["notes"])


def test_rows_in_another_order_are_joined_by_id(run: Any, files: Mapping[str, Path]) -> None:
    lines = files["b"].read_text().splitlines(keepends=True)
    before = json.loads(run("diversity", *files.values(), "--json", "--quiet")[0])["pairs"]
    files["b"].write_text("".join(reversed(lines)))
    assert json.loads(run("diversity", *files.values(), "--json", "--quiet")[0])["pairs"] == before


def test_problems_that_differ_are_refused_or_on_request_left_out(run: Any, files: Mapping[str, Path]) -> None:
    lines = files["b"].read_text().splitlines(keepends=True)
    files["b"].write_text("".join(lines[:4]))
    _, err = run("diversity", *files.values(), "--quiet", status=2)
    assert "a answers 6 problems and b 4, of which 4 are the same (problem 'p4' is in a only)" in err
    told = json.loads(run("diversity", *files.values(), "--shared", "--json", "--quiet")[0])
    assert told["problems"] == 4
    assert "4 problems that all sources answer; they have a 6, b 4" in told["notes"]


def test_other_problems_under_the_same_ids_are_refused(run: Any, tmp_path: Path, files: Mapping[str, Path]) -> None:
    shifted = write(tmp_path / "shifted.jsonl", ["1"] * 6, [*GOLDS[1:], GOLDS[0]])
    _, err = run("diversity", files["a"], shifted, "--quiet", status=2)
    assert "the known answers differ for 6 of 6 ids (first 'p0': '1' and '2')" in err
    assert err.count("\n") == 1


def test_repeated_problems_are_counted(run: Any, tmp_path: Path) -> None:
    both = [
        write(tmp_path / f"{name}.jsonl", ["1", "1", "2"], ["1", "1", "2"], question=["one?", "one?", "two?"])
        for name in "ab"
    ]
    told = json.loads(run("diversity", *both, "--json", "--quiet")[0])
    assert "1 problem repeats an earlier question under another id" in told["notes"]


def test_an_id_that_stands_more_often_than_others_is_refused(run: Any, files: Mapping[str, Path]) -> None:
    text = files["b"].read_text()
    files["b"].write_text(text + text.splitlines(keepends=True)[0])
    _, err = run("diversity", *files.values(), "--quiet", status=2)
    assert "2 responses to id 'p0' and 1 to each of 5 other ids" in err


def test_two_responses_to_each_problem_are_two_draws(run: Any, tmp_path: Path, files: Mapping[str, Path]) -> None:
    two = tmp_path / "two.jsonl"
    again = files["b"].read_text()
    two.write_text(files["a"].read_text() + again)
    told = json.loads(run("diversity", two, "--json", "--quiet")[0])
    (pair,) = told["pairs"]
    assert (pair["a"], pair["b"], pair["kind"]) == ("two", "two #2", "seed")
    assert pair["cells"]["both"] == 1


def test_files_of_one_model_are_named_by_their_seeds(run: Any, files: Mapping[str, Path]) -> None:
    told = json.loads(run("diversity", f"m@seed1={files['a']}", f"m@seed2={files['b']}", "--json", "--quiet")[0])
    assert [pair["kind"] for pair in told["pairs"]] == ["seed"]
    _, err = run("diversity", f"m={files['a']}", f"m={files['b']}", status=2)
    assert "two sources are called 'm'" in err
    assert "m@seed1" in err


def test_families_are_stated_for_files(run: Any, files: Mapping[str, Path]) -> None:
    kinds = {"qwen": "same_family", "llama": "different_family"}
    for family, kind in kinds.items():
        told = run("diversity", *files.values(), "--family", "a=qwen", "--family", f"b={family}", "--json", "--quiet")
        assert json.loads(told[0])["pairs"][0]["kind"] == kind
    _, err = run("diversity", *files.values(), "--family", "c=qwen", status=2)
    assert "--family names 'c', but the sources are a, b" in err


def test_evaluation_folders_and_files_stand_side_by_side(run: Any, tmp_path: Path, files: Mapping[str, Path]) -> None:
    run("grade", files["a"], "--out", tmp_path / "graded", "--quiet")
    mixed = json.loads(run("diversity", f"a={tmp_path / 'graded'}", files["b"], "--json", "--quiet")[0])["pairs"]
    assert mixed == json.loads(run("diversity", *files.values(), "--json", "--quiet")[0])["pairs"]
    run("grade", files["a"], "--out", tmp_path / "strict", "--mcq-policy", "letter_only", "--quiet")
    _, err = run("diversity", tmp_path / "strict", files["b"], "--quiet", status=2)
    assert "grader differs between strict and b (mcq_policy: letter_only, letter_or_value)" in err


def test_tables_for_people_programs_and_papers(run: Any, tmp_path: Path, files: Mapping[str, Path]) -> None:
    out, _ = run("diversity", *files.values(), "--out", tmp_path / "div", "--quiet")
    assert "Error decoupling on 6 problems" in out
    assert str(tmp_path / "div" / "diversity.html") in out.replace("\n", "")
    (row,) = csv.DictReader((tmp_path / "div" / "diversity.csv").open())
    assert (row["a"], row["both"], row["same_wrong"], float(row["oracle"])) == ("a", "1", "1", pytest.approx(4 / 6))
    assert "| a × b | family not stated | 0.00 <sub>" in (tmp_path / "div" / "diversity.md").read_text()
    assert json.loads((tmp_path / "div" / "diversity.json").read_text())["problems"] == 6


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        (["a.jsonl"], "there is no file 'a.jsonl'"),
        (["zoo:qwen2", "zoo:llama"], "'zoo:qwen2' is to be sampled, but on what"),
        (["zoo:qwen2", "zoo:llama", "--data", "synthetic:text"], "need a place to stay: give a folder with --out"),
        (["zoo:qwen2", "--data", "synthetic:text", "--out", "x"], "a pair takes two"),
        (
            ["zoo:qwen2", "--repeat", "2", "--temperature", "0", "--data", "synthetic:text", "--out", "x"],
            "at temperature 0 a second draw is the first again",
        ),
        (["zoo:none", "zoo:llama", "--data", "synthetic:text", "--out", "x"], "there is no 'zoo:none'"),
        (
            ["zoo:qwen2", "zoo:llama", "--data", "synthetic:text", "--data-set", "siz=3", "--out", "x"],
            "siz",
        ),
        (["=a", "b"], "has nothing before the `=`"),
    ],
)
def test_mistakes_are_refused_in_a_sentence(
    run: Any, argv: list[str], sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    _, err = run("diversity", *argv, "--quiet", status=2)
    assert sentence in err
    assert err.count("\n") == 1


# --- partners -------------------------------------------------------------------------------------------------


def test_partners_are_ranked_with_reasons(run: Any, tmp_path: Path, files: Mapping[str, Path]) -> None:
    # c corrects p3 p4 p5 and is wrong where a is right; d is a again.
    c = write(tmp_path / "c.jsonl", ["0", "0", "0", "4", "5", "6"])
    d = write(tmp_path / "d.jsonl", ["1", "2", "3", "9", "9", "8"])
    out, _ = run("pair", files["a"], files["b"], c, d, "--out", tmp_path / "div", "--quiet")
    assert "Of the 3 problems a gets wrong it gets 3 right (100%) and repeats the wrong answer on 0 (0%)." in out
    assert "Limits: " in out
    told = json.loads((tmp_path / "div" / "pair-a.json").read_text())
    assert [one["name"] for one in told["candidates"]] == ["c", "b", "d"]
    # c +3; b +1 - 1; d 0 - 2, of six.
    assert [one["benefit"] for one in told["candidates"]] == pytest.approx([3 / 6, 0, -2 / 6])
    assert "Partners for a" in (tmp_path / "div" / "pair-a.md").read_text()


def test_partners_without_known_answers(run: Any, tmp_path: Path) -> None:
    told = {"a": "112233", "b": "112244", "c": "115566"}
    sources = [write(tmp_path / f"{name}.jsonl", list(text), golds=None) for name, text in told.items()]
    _, err = run("pair", *sources, "--quiet", status=2)
    assert "has no gold answer" in err
    found = json.loads(run("pair", *sources, "--label-free", "--json", "--quiet")[0])
    # a and b agree on 4 of 6, a and c and b and c on 2: s_a = s_b = sqrt(4/6), s_c = sqrt(2/6 * 2/6 / (4/6)).
    assert {one["name"]: one["strength"] for one in found["candidates"]} == pytest.approx(
        {"b": (4 / 6) ** 0.5, "c": (1 / 6) ** 0.5}
    )
    assert not found["labelled"]
    assert found["limits"]
    _, err = run("pair", *sources[:2], "--label-free", "--quiet", status=2)
    assert "at least 3" in err


# --- checkpoints ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Two zoo models of different families after a short lesson, and a copy of one of them."""
    cache = tmp_path_factory.mktemp("cache")
    told = {name: taught(name, cache) for name in ("qwen2", "llama")}
    told["copy"] = cache / "copy"
    shutil.copytree(told["qwen2"], told["copy"])
    return told


def asked(models: Mapping[str, Path], out: Path) -> list[str | Path]:
    sources = [f"{name}={path}" for name, path in models.items()]
    how = ["--style", "plain", "--max-new-tokens", "14", "--problems", "40", "--quiet", "--out", out]
    return [*sources, "--data", "synthetic:text", *how]


def test_two_checkpoints_from_end_to_end(run: Any, models: Mapping[str, Path], tmp_path: Path) -> None:
    two = {name: models[name] for name in ("qwen2", "llama")}
    argv = asked(two, tmp_path / "div")
    told = json.loads(run("diversity", *argv, "--repeat", "2", "--json")[0])
    assert told["problems"] == 40
    assert {(pair["a"], pair["b"]): pair["kind"] for pair in told["pairs"]} == {
        ("qwen2", "llama"): "different_family",
        ("qwen2", "qwen2 #2"): "seed",
        ("llama", "llama #2"): "seed",
    }
    assert {one["name"]: one["family"] for one in told["models"]}["llama #2"] == "llama"
    accuracy = {one["name"]: one["accuracy"] for one in told["models"]}
    for pair in told["pairs"]:
        cells = pair["cells"]
        assert sum(cells[name] for name in ("both", "only_a", "only_b", "neither")) == 40
        assert (cells["both"] + cells["only_a"]) / 40 == accuracy[pair["a"]]
        assert (cells["both"] + cells["only_b"]) / 40 == accuracy[pair["b"]]
    # Each model's samples are an evaluation that other commands take.
    summary = json.loads((tmp_path / "div" / "samples" / "llama" / "summary.json").read_text())
    (scores,) = summary["benchmarks"].values()
    assert scores["total"] == 80
    compared = run("compare", *(tmp_path / "div" / "samples" / name for name in two), "--json")
    assert json.loads(compared[0])[0]["n"] == 40

    # Killed in the middle of a line: what is missing is drawn again, as it was.
    responses = tmp_path / "div" / "samples" / "llama" / "responses.jsonl"
    whole = responses.read_bytes()
    assert whole.count(b"\n") == 80
    os.truncate(responses, len(whole) * 9 // 10)
    assert json.loads(run("diversity", *argv, "--repeat", "2", "--json")[0]) == told
    assert responses.read_bytes() == whole

    # Partners come from the same samples; and a folder begun with other settings is refused.
    before = {file: file.stat().st_mtime_ns for file in (tmp_path / "div" / "samples").rglob("responses.jsonl")}
    ranking = json.loads(run("pair", *argv, "--repeat", "2", "--json")[0])
    assert {one["name"] for one in ranking["candidates"]} == {"llama", "qwen2 #2"}
    assert before == {file: file.stat().st_mtime_ns for file in before}
    _, err = run("diversity", *argv, "--repeat", "2", "--temperature", "0.5", status=2)
    assert "temperature: 0.8 -> 0.5" in err


def test_one_model_under_two_names_draws_noise_of_its_own(run: Any, models: Mapping[str, Path], tmp_path: Path) -> None:
    # With one stream of noise for both, equal weights would give equal answers, and kappa would be 1.
    twins = {name: models[name] for name in ("qwen2", "copy")}
    run("diversity", *asked(twins, tmp_path / "div"))
    texts = [
        [json.loads(line)["text"] for line in (tmp_path / "div" / "samples" / name / "responses.jsonl").open()]
        for name in twins
    ]
    assert texts[0] != texts[1]


def test_seeds_named_beside_a_model_are_draws_of_it(run: Any, models: Mapping[str, Path], tmp_path: Path) -> None:
    one, two = asked({"llama@seed1": models["llama"], "llama@seed2": models["llama"]}, tmp_path / "div")[:2]
    argv = asked({}, tmp_path / "div")
    (pair,) = json.loads(run("diversity", one, two, *argv, "--json")[0])["pairs"]
    assert (pair["kind"], pair["b"]) == ("seed", "llama #2")
    assert {path.name for path in (tmp_path / "div" / "samples").iterdir()} == {"llama-seed1", "llama-seed2"}


def test_data_without_known_answers_are_refused_but_for_label_free_pairs(
    run: Any, models: Mapping[str, Path], tmp_path: Path
) -> None:
    data = tmp_path / "data.jsonl"
    data.write_text("".join(json.dumps({"question": f"{n} + 1 = ?"}) + "\n" for n in [*range(5), 3]))
    argv = [part if part != "synthetic:text" else data for part in asked(models, tmp_path / "div")]
    _, err = run("diversity", *argv, status=2)
    assert "5 of 5 problems of data.jsonl have no known answer" in err
    assert "--data-set columns.answer=NAME" in err
    told = json.loads(run("diversity", *argv, "--data-set", "columns.answer=question", "--json")[0])
    assert any("1 repeated row" in note for note in told["notes"])


# --- sources, families, page ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "label", "where", "seed"),
    [
        ("zoo:qwen2.5-vl@1", "qwen2.5-vl@1", "zoo:qwen2.5-vl@1", None),
        ("zoo:qwen2@seed3", "qwen2", "zoo:qwen2", 3),
        ("Qwen/Qwen2.5-3B", "Qwen2.5-3B", "Qwen/Qwen2.5-3B", None),
        ("q=Qwen/Qwen2.5-3B@seed2", "q", "Qwen/Qwen2.5-3B", 2),
        ("q@seed7=Qwen/Qwen2.5-3B", "q", "Qwen/Qwen2.5-3B", 7),
    ],
)
def test_sources_as_people_write_them(text: str, label: str, where: str, seed: int | None) -> None:
    source = parse_source(text)
    assert (source.label, source.where, source.seed, source.kind) == (label, where, seed, "checkpoint")


def test_lineages_come_from_the_config_alone(tiny_checkpoints: Mapping[str, Path], tmp_path: Path) -> None:
    assert lineage(str(tiny_checkpoints["llama"])) == "llama"
    assert lineage("zoo:qwen2.5-vl") == "qwen"
    llama = tmp_path / "qwen-by-name"
    llama.mkdir()
    (llama / "config.json").write_text('{"model_type": "phi3"}')
    assert lineage(str(llama)) == "phi"
    assert lineage("no/such-model") is None


def test_an_unknown_relation_of_name_and_path_is_refused() -> None:
    with pytest.raises(UserError, match="nothing before the `=`"):
        parse_source("=qwen")
