"""The report page, the comparison and the overview picture, from fabricated run folders."""

from __future__ import annotations

import base64
import io
import json
import shutil
import subprocess
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from rich.cells import cell_len
from rich.console import Console

from fabricated_runs import write_run
from mmcorl.errors import UserError
from mmcorl.report.charts import nice_ticks
from mmcorl.report.compare import comparison, comparison_table, is_within_noise
from mmcorl.report.overview import overview_png
from mmcorl.report.run_page import build_report
from mmcorl.report.table import terminal

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
VOID = {"meta", "img", "br", "link", "input", "hr"}


class Page(HTMLParser):
    """Elements in order, the text of each, and the cells of every table."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.rows: list[list[str]] = []
        self.texts: list[str] = []
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert self._open == [], "every element is closed"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th") and self.rows:
            self.rows[-1].append("")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self._open.pop() == tag, f"</{tag}> closes what is open"

    def handle_data(self, data: str) -> None:
        if "style" in self._open:
            return
        self.texts.append(data)
        if self.rows and ("td" in self._open or "th" in self._open) and "svg" not in self._open:
            self.rows[-1][-1] += data

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.texts).split())

    def structure(self) -> list[tuple[str, tuple[str, ...]]]:
        return [(tag, tuple(attrs)) for tag, attrs in self.elements]

    def table_rows(self) -> list[list[str]]:
        return [[" ".join(cell.split()) for cell in row] for row in self.rows]


def page_of(run_dir: Path, *others: Path) -> Page:
    return Page(build_report(run_dir, others).read_text(encoding="utf-8"))


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def rewrite(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    records = lines(path)
    for record in records:
        change(record)
    path.write_text("".join(json.dumps(record) + "\n" for record in records))


@pytest.fixture
def three_runs(tmp_path: Path) -> list[Path]:
    return [
        write_run(tmp_path / "corl"),
        write_run(tmp_path / "self", name="quickstart-self", supervision="self"),
        write_run(tmp_path / "gold", name="quickstart-gold", supervision="gold"),
    ]


def test_the_tables_hold_the_numbers_of_the_files(three_runs: list[Path]) -> None:
    page = page_of(three_runs[0], *three_runs[1:])
    expected = []
    for run_dir in three_runs:
        first, *_, last = lines(run_dir / "validation.jsonl")
        for agent in ("qwen", "intern"):
            start, end = first["agents"][agent]["accuracy"], last["agents"][agent]["accuracy"]
            expected.append([agent, f"{start:.3f}", f"{end:.3f}", f"{end - start:+.3f}", ""])
        start, end = first["cohort"]["agreement"], last["cohort"]["agreement"]
        expected.append(["agreement", f"{start:.3f}", f"{end:.3f}", f"{end - start:+.3f}", ""])
    shown = [row for row in page.table_rows() if row and row[0] in ("qwen", "intern", "agreement")]
    assert shown == expected
    for label in ("Co-RL: a peer's votes", "self-rewarding: own votes", "gold labels: known answers"):
        assert label in page.text
    first, *_, last = lines(three_runs[0] / "validation.jsonl")
    tags = next(row for row in page.table_rows() if row and row[0] == "dice")
    assert [tags[1], tags[2], tags[5], tags[6]] == [
        f"{record['agents'][agent]['by_tag']['dice']:.3f}" for agent in ("qwen", "intern") for record in (first, last)
    ]
    assert ["train", "4000", "3997", "2 corrupt image, 1 empty question"] in page.table_rows()


def test_the_page_loads_nothing_and_runs_nothing(three_runs: list[Path]) -> None:
    path = build_report(three_runs[0], three_runs[1:])
    page = Page(path.read_text(encoding="utf-8"))
    tags = {tag for tag, _ in page.elements}
    assert not tags & {"script", "link", "iframe", "object", "embed", "form", "base", "a"}
    sources = [attrs["src"] for tag, attrs in page.elements if "src" in attrs]
    assert len(sources) == 6
    for source in sources:
        assert source is not None
        kind, data = source.split(";base64,")
        assert kind == "data:image/png"
        Image.open(io.BytesIO(base64.b64decode(data, validate=True))).verify()
    assert not any(name.startswith("on") or name == "href" for _, attrs in page.elements for name in attrs)
    assert "url(" not in path.read_text()
    policy = next(a["content"] for tag, a in page.elements if a.get("http-equiv") == "Content-Security-Policy")
    assert policy is not None
    assert policy.startswith("default-src 'none'")
    assert list(three_runs[0].glob(".report*")) == []


def test_what_a_model_or_a_row_says_never_becomes_markup(tmp_path: Path) -> None:
    """The page of a hostile run has the same elements and attributes as a harmless one of the same shape."""
    evil = "<script>document.title='owned'</script>'\"><img src=http://evil.test onerror=alert(1)>{{ 7*7 }}&amp;"

    def poison(run_dir: Path, text: str) -> None:
        def gallery(record: dict[str, Any]) -> None:
            record.update(text=text, gold=text, tag=text, row=text)
            for told in record["agents"].values():
                told.update(votes=[[text, 5], ["8", 2]], answers=[text] * 5 + ["8"] * 2, label=text)
                told.update(sample=text, teacher=text)
            record["agents"] = {f"{text} {index}": told for index, told in enumerate(record["agents"].values())}

        def rename(record: dict[str, Any]) -> None:
            for told in record["agents"].values():
                if "by_tag" in told:
                    told["by_tag"] = {text: 0.5}
            record["agents"] = {f"{text} {i}": told for i, told in enumerate(record["agents"].values())}
            if "set" in record:
                record["set"] = text
            pairs = record["cohort"]["pairs"]
            record["cohort"]["pairs"] = {f"{text}{i}": value for i, value in enumerate(pairs.values())}

        rewrite(run_dir / "gallery.jsonl", gallery)
        rewrite(run_dir / "metrics.jsonl", rename)
        rewrite(run_dir / "validation.jsonl", rename)
        check = {text: {"rows": 1, "kept": 0, "counts": {text: 1}, "findings": [{"row_id": text, "reason": text}]}}
        (run_dir / "data_check.json").write_text(json.dumps(check))
        config = {"name": text, "steps": 60, "supervision": {"kind": text}, "agents": []}
        (run_dir / "config.yaml").write_text(json.dumps(config))
        summary = {"name": text, "notes": [text], "grader": {"name": text, "version": text}}
        (run_dir / "summary.json").write_text(json.dumps(summary))

    pages = []
    for name, text in (("evil", evil), ("harmless", "w" * len(evil))):
        run_dir = write_run(tmp_path / name)
        poison(run_dir, text)
        pages.append(page_of(run_dir))
    assert pages[0].structure() == pages[1].structure()
    # shown letter by letter in questions, answers, samples, tags, notes and names; hover boxes shorten
    assert pages[0].text.count(evil) > 100


def test_surrogates_controls_and_huge_texts(tmp_path: Path) -> None:
    run_dir = write_run(tmp_path / "run", gallery=1)

    def change(record: dict[str, Any]) -> None:
        record["text"] = "half \ud83d a pair, NUL \x00, escape \x1b[31m"
        record["agents"]["qwen"]["sample"] = "x" * 104_000
        record["agents"]["qwen"]["votes"] = [["\udc00" * 3, 8]]

    rewrite(run_dir / "gallery.jsonl", change)
    path = build_report(run_dir)
    page = Page(path.read_bytes().decode("utf-8"))
    assert "half � a pair, NUL �, escape �[31m" in page.text
    # 104,000 letters, of which 4,000 are shown
    assert max(page.text.split(), key=len) == "x" * 4000
    assert "… 100,000 more characters not shown" in page.text
    assert path.stat().st_size < 1_000_000


@pytest.mark.parametrize(
    "missing",
    [
        ["summary.json"],
        ["metrics.jsonl", "timings.jsonl"],
        ["validation.jsonl"],
        ["validation.jsonl", "summary.json"],
        ["gallery.jsonl", "data_check.json"],
        ["config.yaml"],
        [
            "config.yaml",
            "summary.json",
            "validation.jsonl",
            "gallery.jsonl",
            "timings.jsonl",
            "data_check.json",
        ],
    ],
)
def test_any_missing_file_leaves_a_page(tmp_path: Path, missing: list[str]) -> None:
    run_dir = write_run(tmp_path / "run")
    for name in missing:
        (run_dir / name).unlink()
    page = page_of(run_dir)
    assert "run" in page.text
    if missing == ["validation.jsonl"]:
        summary = json.loads((run_dir / "summary.json").read_text())
        told = summary["agents"]["qwen"]
        row = next(row for row in page.table_rows() if row[0] == "qwen")
        assert row[1:3] == [f"{told['start']['held_out']:.3f}", f"{told['end']['held_out']:.3f}"]
    if missing[:2] == ["config.yaml", "summary.json"]:
        assert "No evaluation is on record yet." in page.text
        assert "No config is on record." in page.text


def test_a_run_in_progress_says_so_and_a_torn_line_is_left_out(tmp_path: Path) -> None:
    run_dir = write_run(tmp_path / "run", done=33)
    with (run_dir / "metrics.jsonl").open("a") as file:
        file.write('{"step": 34, "agents": {"qw')
    page = page_of(run_dir)
    assert "in progress or stopped, at step 33 of 60" in page.text
    assert "quickstart has not finished: it stands at step 33 of 60" in page.text
    assert "the last line of metrics.jsonl was still being written" in page.text
    rows = comparison([run_dir])
    assert [(row["steps"], row["finished"], row["end_step"]) for row in rows] == [(33, False, 30)] * 2


def test_one_evaluation_has_no_end(tmp_path: Path) -> None:
    run_dir = write_run(tmp_path / "run", done=5)
    rows = comparison([run_dir])
    assert rows[0]["start"] is not None
    assert rows[0]["end"] is None
    assert rows[0]["change"] is None
    row = next(row for row in page_of(run_dir).table_rows() if row[0] == "qwen")
    assert row[2:4] == ["–", "–"]


def test_a_run_without_known_answers(tmp_path: Path) -> None:
    run_dir = write_run(tmp_path / "run", gold=False)
    page = page_of(run_dir)
    assert "quickstart has no known answers to evaluate against, so it has no accuracy." in page.text
    assert "no known answer" in page.text
    assert "Agreement on held_out" in page.text
    assert "Pseudo-label accuracy" not in page.text
    assert comparison([run_dir])[0]["agreement_end"] is not None


def test_one_agent_and_three_agents(tmp_path: Path) -> None:
    alone = page_of(write_run(tmp_path / "one", agents=["qwen"], supervision="self"))
    assert "agreement" not in [row[0] for row in alone.table_rows()]
    page = page_of(write_run(tmp_path / "three", agents=["qwen", "gemma", "intern"]))
    assert [row[0] for row in page.table_rows() if row[0] in ("qwen", "gemma", "intern")] == [
        "qwen",
        "gemma",
        "intern",
    ]
    assert "gemma|intern" in page.text


def test_runs_of_other_length_seed_and_start_are_told_apart(tmp_path: Path) -> None:
    run_dir = write_run(tmp_path / "a")
    other = write_run(tmp_path / "b", supervision="self", steps=120, seed=3)
    page = page_of(run_dir, other)
    assert "quickstart (b) has another seed than quickstart (a): 3 instead of 0." in page.text
    assert "quickstart (b) has another number of steps than quickstart (a): 120 instead of 60." in page.text
    assert "quickstart (b) does not start from the same accuracy as quickstart (a)" in page.text
    assert page_of(run_dir, run_dir).text.count("has another") == 0


def test_reward_far_above_accuracy_is_said(three_runs: list[Path]) -> None:
    page = page_of(three_runs[1])
    assert "Reward is agreement with a label, not correctness: in quickstart-self" in page.text
    assert "Reward is agreement with a label, not correctness" not in page_of(three_runs[2]).text


def test_pictures_that_cannot_be_shown_are_named(tmp_path: Path) -> None:
    run_dir = write_run(tmp_path / "run", gallery=4)
    (tmp_path / "secret.png").write_bytes((run_dir / "gallery/ab00.png").read_bytes())
    big = Image.effect_noise((1600, 1200), 90).convert("RGB")
    big.save(run_dir / "gallery/ab03.png")
    (run_dir / "gallery/ab02.png").write_bytes(b"no picture")
    images = iter([["../secret.png"], ["gallery/none.png"], ["gallery/ab02.png"], ["gallery/ab03.png"]])
    rewrite(run_dir / "gallery.jsonl", lambda record: record.update(images=next(images)))
    path = build_report(run_dir)
    page = Page(path.read_text())
    assert "../secret.png lies outside the run folder" in page.text
    assert "gallery/none.png is missing" in page.text
    assert "gallery/ab02.png cannot be read" in page.text
    shown = [attrs["src"] for tag, attrs in page.elements if tag == "img"]
    assert len(shown) == 1
    assert shown[0] is not None
    small = Image.open(io.BytesIO(base64.b64decode(shown[0].split(",")[1])))
    assert small.size == (768, 576), "1600 x 1200 scaled to a long side of 768"


def test_a_long_gallery_and_a_long_run_stay_small(tmp_path: Path) -> None:
    run_dir = write_run(tmp_path / "run", steps=3000, evaluate_every=50, gallery=90)
    path = build_report(run_dir)
    page = Page(path.read_text())
    assert "40 of 90 kept prompts" in page.text
    assert "Long series are averaged in buckets of steps." in page.text
    assert path.stat().st_size < 1_500_000


def test_numbers_that_are_not_finite_are_counted(tmp_path: Path) -> None:
    run_dir = write_run(tmp_path / "run")

    def change(record: dict[str, Any]) -> None:
        if record["step"] in (7, 8):
            record["agents"]["qwen"]["loss"] = float("nan")

    rewrite(run_dir / "metrics.jsonl", change)
    assert "2 numbers on record are NaN or infinite; they are left out of the charts." in page_of(run_dir).text


def test_folders_and_files_that_are_no_run_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is not a folder"):
        build_report(tmp_path / "nothing")
    with pytest.raises(UserError, match=r"holds none of metrics\.jsonl"):
        build_report(tmp_path)
    run_dir = write_run(tmp_path / "run")
    text = (run_dir / "validation.jsonl").read_text().splitlines(keepends=True)
    (run_dir / "validation.jsonl").write_text("".join([text[0], "{broken\n", *text[1:]]))
    with pytest.raises(UserError, match=r"line 2 of .*validation\.jsonl is not JSON"):
        build_report(run_dir)
    with pytest.raises(UserError, match="is not a folder"):
        comparison([tmp_path / "nothing"])


def test_comparison_rows(three_runs: list[Path]) -> None:
    rows = comparison(three_runs)
    assert [(row["run"], row["supervision"], row["agent"]) for row in rows] == [
        (run, kind, agent)
        for run, kind in (("quickstart", "ring"), ("quickstart-self", "self"), ("quickstart-gold", "gold"))
        for agent in ("qwen", "intern")
    ]
    summary = json.loads((three_runs[0] / "summary.json").read_text())
    row = rows[0]
    assert row["start"] == summary["agents"]["qwen"]["start"]["held_out"]
    assert row["end"] == summary["agents"]["qwen"]["end"]["held_out"]
    assert row["change"] == row["end"] - row["start"]
    assert row["agreement_end"] == summary["agreement"]["held_out"]["end"]
    assert (row["steps"], row["seconds"], row["set"], row["items"]) == (
        60,
        summary["seconds"],
        "held_out",
        400,
    )


@pytest.mark.parametrize("width", [60, 80, 120])
@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_the_terminal_table_fits_and_holds_the_numbers(three_runs: list[Path], width: int, encoding: str) -> None:
    rows = comparison(three_runs)
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding=encoding)
    Console(file=file, width=width, legacy_windows=False).print(terminal([comparison_table(rows)]))
    file.flush()
    text = raw.getvalue().decode(encoding)
    assert max(cell_len(line) for line in text.splitlines()) <= width
    for row in rows:
        for number in (f"{row['start']:.3f}", f"{row['end']:.3f}", f"{row['change']:+.3f}"):
            assert number in text
    assert all(kind in text for kind in ("Co-RL", "self-rewarding", "gold labels"))


def test_noise_of_a_change() -> None:
    """0.50 to 0.55: 1.96 * sqrt(0.25/400 + 0.2475/400) = 0.069 over 400, which is more; 0.022 over 4000."""
    assert is_within_noise(0.50, 0.55, 400)
    assert not is_within_noise(0.50, 0.55, 4000)
    assert not is_within_noise(0.50, 0.55, None)


def test_ticks_are_round_and_cover_the_values() -> None:
    assert nice_ticks(0.0, 0.68) == pytest.approx([0, 0.2, 0.4, 0.6, 0.8])
    assert nice_ticks(-3.0, 7.0) == pytest.approx([-5, -2.5, 0, 2.5, 5, 7.5])
    for low, high in ((0.0, 0.0), (5.0, 5.0), (-1e-9, 1e-9), (0.0, 1e12)):
        ticks = nice_ticks(low, high)
        assert len(ticks) >= 2
        assert ticks[0] <= low
        assert ticks[-1] >= high


def test_overview_picture(three_runs: list[Path], tmp_path: Path) -> None:
    path = overview_png(three_runs[0], three_runs[1:], tmp_path / "docs" / "overview.png")
    with Image.open(path) as image:
        assert image.size == (1600, 656)
        colours = {colour for _, colour in image.convert("RGB").getcolors(1 << 20) or []}
    assert {(0x00, 0x72, 0xB2), (0xD5, 0x5E, 0x00)} <= colours, "both agents are drawn in their colours"
    empty = write_run(tmp_path / "empty")
    for name in ("validation.jsonl", "summary.json"):
        (empty / name).unlink()
    with pytest.raises(UserError, match="no evaluation to draw"):
        overview_png(empty, [], tmp_path / "none.png")


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")
def test_a_real_browser_shows_it_without_a_request(three_runs: list[Path], tmp_path: Path) -> None:
    def poison(record: dict[str, Any]) -> None:
        record["text"] = "<script>document.title='owned'</script><img src='http://evil.test/a.png'>"

    rewrite(three_runs[0] / "gallery.jsonl", poison)
    path = build_report(three_runs[0], three_runs[1:])
    assert CHROMIUM is not None
    switches = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"]
    switches += ["--disable-background-networking", "--disable-component-update", "--disable-sync"]
    switches += ["--window-size=1200,900"]
    log, shot = tmp_path / "net.json", tmp_path / "shot.png"
    own = [f"--user-data-dir={tmp_path / 'profile'}", f"--log-net-log={log}", f"--screenshot={shot}"]
    command = [CHROMIUM, *switches, *own, path.as_uri()]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    assert "evil.test" not in log.read_text()
    assert path.name in log.read_text(), "the log does hold what was loaded"
    with Image.open(shot) as image:
        assert len(image.convert("RGB").getcolors(1 << 20) or []) > 50, "something was drawn"
    own[-1] = "--dump-dom"
    command = [CHROMIUM, *switches, *own, path.as_uri()]
    done = subprocess.run(command, check=True, capture_output=True, timeout=60, text=True)
    assert "<title>quickstart: Co-RL: a peer's votes</title>" in done.stdout


def test_a_real_run_folder_shows_its_skipped_rows_and_its_teachers(tmp_path: Path, tiny_checkpoints: Any) -> None:
    """The files are those of a real run, so the page and its source cannot drift apart."""
    from mmcorl.cli.main import main
    from runs import changed, small_config, write_config

    rows = []
    for number in range(6):
        Image.new("RGB", (40, 40), (40 * number, 0, 0)).save(tmp_path / f"{number}.png")
        rows.append({"question": f"How red is {number}?", "image": f"{number}.png", "answer": str(number)})
    (tmp_path / "2.png").write_bytes(b"broken")
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    models = {"qwen": tiny_checkpoints["qwen2_5_vl"], "intern": tiny_checkpoints["internvl3_5"]}
    train = {
        "source": str(tmp_path / "rows.jsonl"),
        "columns": {"image": "image", "answer": "answer"},
        "on_bad_row": "skip",
    }
    config = changed(small_config(models), data__train=train, steps=1, validation=None, sampling__max_new_tokens=2)
    assert main(["train", str(write_config(tmp_path, config)), "--run-dir", str(tmp_path / "run"), "--quiet"]) == 0
    page = (tmp_path / "run" / "report.html").read_text()
    assert "1 corrupt image" in page
    assert "row 2: " in page
    shown = [json.loads(line) for line in (tmp_path / "run" / "gallery.jsonl").read_text().splitlines()]
    assert {entry["agents"]["qwen"]["teacher"] for entry in shown} == {"intern"}
