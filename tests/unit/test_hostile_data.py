"""Data of strangers: nothing is fetched, nothing outside of their folder is read, nothing hangs or fills the memory."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path

import pytest
from PIL import Image

from mmcorl.data import DataSettings, check, load_prompts, row_parsing
from mmcorl.errors import UserError
from mmcorl.system.user_code import NotNamedError, require_known
from model_adapters import images
from model_adapters.images import load_image

COLUMNS = {"image": "image", "id": "id"}


def picture(colour: str = "red") -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (32, 32), colour).save(file, "PNG")
    return file.getvalue()


def sparse(path: Path, size: int) -> None:
    with path.open("wb") as file:
        file.truncate(size)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A folder with a picture beside rows, and a secret one outside of it."""
    (tmp_path / "secret.png").write_bytes(picture("blue"))
    (tmp_path / "secret.jsonl").write_text('{"question": "secret?"}\n')
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "own.png").write_bytes(picture())
    return folder


def test_images_that_lead_out_hang_or_are_too_large_are_counted_and_skipped(data):
    os.mkfifo(data / "pipe.png")
    sparse(data / "sparse.png", 50 * 2**30)
    (data / "link.png").symlink_to(data.parent / "secret.png")
    (data / "zero.png").symlink_to("/dev/zero")
    names = ["own.png", str(data / "own.png"), "./x/../own.png", "pipe.png", "sparse.png", "link.png", "zero.png"]
    names += ["../secret.png", str(data.parent / "secret.png"), "/dev/zero", "/proc/self/environ", "a\0b"]
    (data / "x").mkdir()
    rows = [{"id": str(i), "question": f"{i}?", "image": name} for i, name in enumerate(names)]
    rows.append({"id": "number", "question": "n?", "image": {"bytes": 10**10}})
    nested: object = "own.png"
    for _ in range(900):
        nested = [nested]
    rows.append({"id": "nested", "question": "m?", "image": nested})
    file = data / "rows.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)))
    settings = {"source": str(file), "columns": COLUMNS, "on_bad_row": "skip", "duplicates": "skip"}

    report = check(load_prompts(DataSettings(**settings)), max_side=64)
    reasons = {finding.row_id: finding.reason for finding in report.findings}
    assert report.kept[:3] == (0, 1, 2)
    assert {"5", "6", "7", "8", "9", "10"} == {f.row_id for f in report.findings if f.kind == "outside_image"}
    assert all("outside_files: allow" in reasons[row] for row in "5789")
    assert "pipe" in reasons["3"]
    assert "53,687,091,200 bytes" in reasons["4"]
    assert {"11", "number"} <= reasons.keys()
    assert sum(report.counts.values()) + len(report.kept) == len(rows)

    allowed = check(load_prompts(DataSettings(**settings, outside_files="allow")), max_side=64)
    assert {5, 7, 8} <= {*allowed.kept}
    assert {"6", "9"} <= {f.row_id for f in allowed.findings}

    file.write_text(json.dumps(rows[7]))
    with pytest.raises(UserError, match=r"1 image outside of the data's folder .*outside_files: allow"):
        check(load_prompts(DataSettings(source=str(file), columns=COLUMNS)), max_side=64)


@pytest.mark.parametrize(
    "named",
    ["http://127.0.0.1:9/x.jsonl", "../secret.jsonl", "{parent}/secret.jsonl", "link.jsonl", "*/../../s*.jsonl"],
)
def test_the_card_of_a_folder_may_not_lead_out_of_it(data, named):
    (data / "link.jsonl").symlink_to(data.parent / "secret.jsonl")
    named = named.format(parent=data.parent)
    (data / "README.md").write_text(f'---\nconfigs:\n- config_name: a\n  data_files: "{named}"\n---\n')
    with pytest.raises(UserError, match=r"lies outside of it; .*outside_files: allow"):
        load_prompts(DataSettings(source=str(data)))
    if not named.startswith("http") and "*" not in named:
        assert load_prompts(DataSettings(source=str(data), outside_files="allow"))[0].text == "secret?"


def test_a_copy_of_a_hub_repository_links_to_its_blobs(data):
    folder = data / "snapshots" / "abc"
    (data / "blobs").mkdir()
    folder.mkdir(parents=True)
    (data / "blobs" / "1").write_text('{"question": "One?", "image": "own.png"}\n')
    (data / "blobs" / "2").write_bytes(picture())
    (folder / "rows.jsonl").symlink_to("../../blobs/1")
    (folder / "own.png").symlink_to("../../blobs/2")
    (folder / "README.md").write_text("---\nconfigs:\n- config_name: a\n  data_files: rows.jsonl\n---\n")
    for source in (folder, folder / "rows.jsonl"):
        assert load_prompts(DataSettings(source=str(source), columns={"image": "image"}))[0].images == (picture(),)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("README.md", "---\nconfigs: !!python/name:os.system\n---\n"),
        ("README.md", "---\nconfigs: [" + "[" * 3000),
        ("README.md", "---\nconfigs: 3\n---\n"),
        ("state.json", "{}"),
        ("data.py", "raise SystemExit"),
        ("rows.json", "[" * 100_000),
    ],
)
def test_a_folder_that_is_no_data_set_is_one_sentence(data, name, content):
    (data / name).write_text(content)
    (data / "rows.csv").write_text("")
    with pytest.raises(UserError, match=r"cannot be read as a data set|has no column"):
        load_prompts(DataSettings(source=str(data)))


def test_long_texts_are_refused_before_they_are_parsed_or_tokenized(tmp_path):
    texts = ["short?", "x" * 2_000_000, " " * 900_000 + "x", "word " * 20_000]
    rows = [{"question": text, "answer": "1"} for text in texts]
    rows += [{"question": "a?", "answer": "x" * 2_000_000}, {"question": "b?", "choices": "A. 1;" + "\n" * 50_000}]
    file = tmp_path / "rows.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)))
    measured = []

    def length(prompt: object) -> int:
        measured.append(len(prompt.text))  # type: ignore[attr-defined]
        return len(prompt.text)  # type: ignore[attr-defined]

    columns = {"answer": "answer", "choices": "choices"}
    settings = DataSettings(source=str(file), columns=columns, on_bad_row="skip", too_long="skip")
    report = check(load_prompts(settings), max_side=64, lengths={"a": (length, 1000)})
    assert dict(report.counts) == {"huge_text": 3, "too_long": 1}
    assert report.kept == (0, 2)
    assert max(measured) < 10


def test_json_that_is_none_is_told_by_its_first_line(tmp_path):
    file = tmp_path / "rows.jsonl"
    for content, said in (
        ('{"question": "caf\xe9"}\n'.encode("latin-1"), "line 1 of rows.jsonl is not JSON"),
        (b'{"question": "a"}\r{"question": "b"}\r', "line 1 of rows.jsonl is not JSON"),
        (b'{"question": ' + b"9" * 5000 + b"}", "is not JSON"),
        (b'{"question": ' + b"[" * 100_000, "is not JSON"),
        (b'{"question": "a", "question": "b"}', "the key 'question' appears twice"),
        (b" " * (2**24 + 1), "line 1 of rows.jsonl has more than 16,777,216 bytes"),
    ):
        file.write_bytes(content)
        with pytest.raises(UserError, match="has no readable row") as caught:
            load_prompts(DataSettings(source=str(file)))
        assert said in str(caught.value)
    sparse(file, 50 * 2**30)
    with pytest.raises(UserError, match="53,687,091,200 bytes"):
        load_prompts(DataSettings(source=str(file)))
    file.write_text('{"question": "a", "answer": NaN}\n{"question": "b", "answer": "nan"}\n')
    source = load_prompts(DataSettings(source=str(file), columns={"answer": "answer"}))
    assert [prompt.gold for prompt in source] == [None, "nan"]


def test_markers_are_stripped_in_time_that_grows_with_the_text():
    text = "a" + " \t" * 400_000 + "<image>b <image1> <image>c" + " " * 100_000 + "d"
    assert row_parsing.strip_markers(text) == "ab" + "c" + " " * 100_000 + "d"


@pytest.mark.parametrize("mode", ["RGBA", "LA", "PA", "P", "I;16", "I", "F", "RGB"])
def test_bands_change_no_pixel(mode, monkeypatch):
    ramp = Image.linear_gradient("L")
    if mode in ("I;16", "I", "F"):
        image = ramp.convert("I").point(lambda value: value * 900 - 100_000 * (mode == "I")).convert(mode)
    else:
        image = Image.merge("RGBA", [ramp, ramp.rotate(90), ramp.rotate(180), ramp]).convert(mode)
    whole = load_image(image)
    monkeypatch.setattr(images, "_BAND_PIXELS", 1000)
    assert load_image(image).tobytes() == whole.tobytes()


@pytest.mark.parametrize("name", ["never:same", "never.py:same"])
def test_code_that_a_run_brings_is_code_that_nobody_named(name: str, tmp_path: Path) -> None:
    (tmp_path / "user").mkdir()
    (tmp_path / "user" / "never.py").write_text(f"def same(a, b):\n    return a == {str(tmp_path)!r}\n")
    with pytest.raises(NotNamedError, match=r"never\.py"):
        require_known(name, "answer relation", tmp_path / "config.yaml", tmp_path)
