"""Evaluations of files of different names, folders graded again, and what is refused before work starts."""

from __future__ import annotations

import json
from pathlib import Path

from evaluations import Cli, write_rows


def answers(path: Path, counts: list[int], first: int = 0) -> Path:
    """Problems of which so many of two samples are right."""
    rows = [
        {"id": f"p{n}", "question": f"{n}?", "gold": str(n), "response": f"<answer>{n if k < right else -1}</answer>"}
        for n, right in enumerate(counts, first)
        for k in range(2)
    ]
    return write_rows(path, rows)


def test_files_of_different_names_with_the_same_problems_go_together_everywhere(cli: Cli, tmp_path: Path) -> None:
    a, b = answers(tmp_path / "base.jsonl", [2, 1, 0]), answers(tmp_path / "trained.jsonl", [2, 2, 1])
    for file in (a, b):
        cli("grade", file)
    folders = (tmp_path / "base.graded", tmp_path / "trained.graded")
    (paired,) = cli.json("compare", *folders)
    # Of two samples each: 3 of 6 and 5 of 6 right.
    assert (paired["benchmark"], paired["n"], paired["accuracy_a"], paired["accuracy_b"]) == (
        "responses",
        3,
        0.5,
        5 / 6,
    )
    (reach,) = cli.json("boundary", *folders)
    assert [reach[key] for key in ("problems", "samples", "reached", "lost")] == [3, 2, ["p2"], []]
    assert cli.json("boundary", a, b)[0]["passes"] == reach["passes"]  # graded here, into FILE.boundary
    # The votes of four samples: p0, p1 by 3 of 4, p2 loses to -1.
    pooled = cli.json("ensemble", *folders)["benchmarks"]["responses"]
    assert (pooled["aggregation"], pooled["correct"], pooled["total"]) == ("maj@4", 2, 3)
    table = cli("table", *folders, "--format", "csv").splitlines()
    assert [line.split(",")[1] for line in table[1:]] == ["responses", "responses"]
    # Nothing is renamed on disk, and other problems stay apart.
    assert list(json.loads((folders[0] / "summary.json").read_text())["benchmarks"]) == ["base"]
    cli("grade", answers(tmp_path / "others.jsonl", [1, 1, 1], first=1))
    others = tmp_path / "others.graded"
    assert "have no benchmark in common" in cli.refused("compare", folders[0], others)
    assert "have no benchmark in common" in cli.refused("boundary", folders[0], others)
    assert "differ in items" in cli.refused("ensemble", folders[0], others)
    # In a table of teams the one that answers other problems is named, wherever it stands.
    for teams in (
        (f"A={folders[0]},{folders[1]}", f"B={others},{folders[1]}"),
        (f"A={others}", *map("{0.stem}={0}".format, folders)),
    ):
        refused = cli.refused("ensemble", "--table", *teams)
        assert "'others.graded' holds others and 'base.graded' responses" in refused


def test_a_folder_is_graded_where_it_is(cli: Cli, tmp_path: Path) -> None:
    cli("grade", answers(tmp_path / "r.jsonl", [1, 1]))
    folder = tmp_path / "r.graded"
    assert "leave --out and --benchmark out" in cli.refused("grade", folder, "--out", tmp_path / "elsewhere")
    assert not (tmp_path / "elsewhere").exists()
    assert cli.score("grade", folder)["correct"] == 2


def test_endings_and_missing_responses_are_shares_of_what_was_due(cli: Cli, tmp_path: Path) -> None:
    texts = ["<answer>0</answer>", "<answer>9</answer>", "no form", "<answer>open", None]
    rows = [{"id": str(n), "question": f"{n}?", "gold": "0", "response": text} for n, text in enumerate(texts)]
    shown = cli("grade", write_rows(tmp_path / "r.jsonl", rows))
    # One of five right by rules; two commit, one gives no answer, one never closes, one is missing.
    for line in ("rules alone %: 20.00", "format %: 40.0", "no answer %: 20.0", "unclosed %: 20.0", "missing %: 20.0"):
        assert line in shown
    assert "All are shares of the responses that were" in " ".join(shown.split())


def test_a_budget_that_the_context_cannot_hold_is_refused_before_the_model_is_loaded(cli: Cli, tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text(json.dumps({"model_type": "qwen2", "max_position_embeddings": 2048}))
    rows = write_rows(tmp_path / "rows.jsonl", [{"question": "1+1?", "answer": "2"}])
    said = cli.refused("eval", model, f"mine={rows}", "--out", tmp_path / "out")
    assert "16384 for mine" in said
    assert "context of 2048 tokens" in said
    assert "2048" in cli.refused("eval", model, f"mine={rows}", "--max-new-tokens", "2048", "--out", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_who_asks_for_the_benchmarks_is_sent_to_eval(cli: Cli) -> None:
    for word in ("benchmarks", "benchmark"):
        assert "`mmcorl eval --help` lists the benchmarks" in cli.refused(word)
