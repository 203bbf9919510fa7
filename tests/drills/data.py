"""Data sets and sources that are damaged or meant to hurt: refused in one sentence, in bounded memory and seconds."""

from __future__ import annotations

import gzip
import http.server
import json
import os
import random
import urllib.request
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from PIL import Image

from tests.drills.lab import Lab, Verdict, drills, problem, refused
from tests.families.test_images import chunk
from tests.runs import write_config

SECRET = "the number 24681357 that no run may read"
GOOD = [{"question": f"What is {n} + 1?", "answer": str(n + 1)} for n in range(8)]


def rows(*more: Any) -> bytes:
    """Good rows and some others, as JSON Lines; text is written as it stands."""
    return "".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in (*GOOD, *more)).encode()


def tried(
    make: Callable[[Path], object],
    source: str = "rows.jsonl",
    kind: str = "text",
    may_train: bool = False,
    words: tuple[str, ...] = (),
    **settings: Any,
) -> Callable[[Lab], Verdict]:
    """One step on what `make` puts into a folder; nothing of `secret.jsonl` beside it may get into the run."""

    def body(lab: Lab) -> Verdict:
        folder = lab.folder()
        secret = [{"question": f"{n}: {SECRET}", "answer": "1"} for n in range(8)]
        (folder / "secret.jsonl").write_text("".join(json.dumps(row) + "\n" for row in secret))
        Image.new("RGB", (32, 32), (1, 2, 3)).save(folder / "secret.png")
        (folder / "data").mkdir()
        make(folder / "data")
        columns = {"answer": "answer"} | ({"image": "image"} if kind == "visual" else {})
        made = lab.settings(kind, steps=1, validation=None)
        made["data"]["train"] = {"source": str(folder / "data" / source), "columns": columns, **settings}
        made["batch"]["prompts"] = 2
        run = folder / "run"
        ended = lab.run("train", write_config(folder, made), "--run-dir", run, seconds=40)
        if wrong := problem(ended):
            return wrong
        for file in (path for path in run.rglob("*") if path.is_file()):
            if b"24681357" in file.read_bytes() or (file.parent.name == "gallery" and not may_train):
                return Verdict("silent", f"what lies outside of the folder is in {file.relative_to(run)}")
        if ended.code == 0:
            return Verdict("survived" if may_train else "silent", "" if may_train else "trained on it")
        return refused(ended, *words)

    return body


def holds(content: bytes, name: str = "rows.jsonl") -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_bytes(content)


def picture(
    make: Callable[[Path], object], path: str = "a.png", may_train: bool = False, **settings: Any
) -> Callable[[Lab], Verdict]:
    """Rows whose picture is what `make` puts into the folder under a name."""

    def both(folder: Path) -> None:
        make(folder)
        for n in range(2, 9):
            Image.new("RGB", (28, 28), (n * 20, 0, 0)).save(folder / f"good{n}.png")
        good = [{**row, "image": f"good{n}.png"} for n, row in enumerate(GOOD) if n >= 2]
        bad = {**GOOD[0], "image": path}
        (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in (*good, bad)))

    return tried(both, kind="visual", may_train=may_train, **settings)


def png(mode: str, width: int, height: int, name: str = "a.png") -> Callable[[Path], object]:
    """A picture of one colour, written without holding it whole: a PNG of many pixels and few bytes."""
    bits, kind, samples = {"1": (1, 0, 1), "L": (8, 0, 1), "RGB": (8, 2, 3), "RGBA": (8, 6, 4), "I;16": (16, 0, 1)}[
        mode
    ]

    def make(folder: Path) -> None:
        packer, row = zlib.compressobj(9), b"\0" + b"\x55" * ((width * bits * samples + 7) // 8)
        data = b"".join(packer.compress(row) for _ in range(height)) + packer.flush()
        header = width.to_bytes(4) + height.to_bytes(4) + bytes((bits, kind, 0, 0, 0))
        body = chunk(b"IHDR", header) + chunk(b"IDAT", data) + chunk(b"IEND", b"")
        (folder / name).write_bytes(b"\x89PNG\r\n\x1a\n" + body)

    return make


def readme(data_files: str, **more: Any) -> Callable[[Path], object]:
    """A folder whose README.md says where the data lie."""

    def make(folder: Path) -> None:
        text = f"---\nconfigs:\n- config_name: default\n  data_files: {data_files}\n---\n"
        (folder / "README.md").write_text(text)
        (folder / "train.jsonl").write_bytes(rows())

    return make


def from_the_network(lab: Lab) -> Verdict:
    """README.md names an address of this machine: no command that reads the folder asks it even once."""
    folder, asked = lab.folder(), lab.folder() / "asked.txt"

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            with asked.open("a") as file:
                file.write(f"{self.path}\n")
            self.send_response_only(200)
            self.send_header("Content-Length", str(len(rows())))
            self.end_headers()
            self.wfile.write(rows())

        do_HEAD = do_GET  # noqa: N815

    train = {"source": str(folder), "columns": {"answer": "answer"}}
    config = write_config(folder, lab.settings(steps=1, validation=None, data__train=train))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server, lab.beside(server.serve_forever):
        address = f"http://127.0.0.1:{server.server_port}"
        readme(f"{address}/x.jsonl")(folder)
        urllib.request.urlopen(f"{address}/counted").close()
        for argv in (["train", config], ["doctor", config], ["init", "new.yaml", "--data", folder]):
            ended = lab.run(*argv, cwd=lab.folder())
            if asked.read_text() != "/counted\n":
                return Verdict("silent", f"{argv[0]} asked: {asked.read_text().split()}")
            if not ended.code or "lies outside of it" not in ended.output:
                return Verdict("unclear", f"{argv[0]}, exit {ended.code}: {ended.sentence}")
    return Verdict("survived")


FILES: dict[str, Callable[[Lab], Verdict]] = {
    "the source is a FIFO": tried(lambda folder: os.mkfifo(folder / "rows.jsonl")),
    "the source is /dev/zero": tried(lambda folder: (folder / "rows.jsonl").symlink_to("/dev/zero")),
    "the source is a socket": tried(lambda folder: (folder / "rows.jsonl").symlink_to("/dev/tty")),
    "an empty file": tried(holds(b"")),
    "a link to itself": tried(lambda folder: (folder / "rows.jsonl").symlink_to("rows.jsonl")),
    "UTF-16": tried(holds(rows().decode().encode("utf-16"))),
    "all integers of 5,000 digits": tried(
        holds((('{"question": "q", "answer": ' + "9" * 5000 + "}\n") * 8).encode()), words=("line 1",)
    ),
    "a row of 3,000 nested lists": tried(holds(rows('{"question": ' + "[" * 3000 + "]" * 3000 + "}"))),
    "a row of bare numbers": tried(holds(rows("3"))),
    "a row cut": tried(holds(rows()[:-20])),
    "a row of NUL": tried(holds(rows("\0" * 1000))),
    "a text of 20 MB": tried(holds(rows({"question": "word " * 4_000_000, "answer": "1"}))),
    "a text of 20 MB, skipped": tried(
        holds(rows({"question": "word " * 4_000_000, "answer": "1"})),
        may_train=True,
        too_long="skip",
        on_bad_row="skip",
    ),
    "a text of 100 MB": tried(holds(rows({"question": "word " * 20_000_000, "answer": "1"}))),
    "a word of 20 MB": tried(holds(rows({"question": "x" * 20_000_000, "answer": "1"}))),
    "an answer of 20 MB": tried(holds(rows({"question": "q", "answer": "9" * 20_000_000})), may_train=True),
    "a million options": tried(
        holds(rows({"question": "q", "answer": "1", "choices": ["x"] * 1_000_000})),
        columns={"answer": "answer", "choices": "choices"},
    ),
    "lone surrogates": tried(holds(rows('{"question": "\\ud800", "answer": "1"}'))),
    "parquet cut": tried(holds(b"PAR1" + b"\0" * 100, "rows.parquet"), source="rows.parquet"),
    "parquet of garbage": tried(
        holds(b"PAR1" + random.Random(1).randbytes(3000) + b"\xff\x0f\0\0PAR1", "rows.parquet"), source="rows.parquet"
    ),
    "CSV with NUL": tried(holds(b"question,answer\n\0,\0\n", "rows.csv"), source="rows.csv"),
    "CSV with an open quote": tried(holds(b'question,answer\n"' + b"x,1\n" * 500_000, "rows.csv"), source="rows.csv"),
    "JSON of 3,000 levels": tried(holds(b"[" * 3000 + b"]" * 3000, "rows.json"), source="rows.json"),
    "2 GB in 2 MB of gzip": tried(
        lambda folder: (folder / "rows.jsonl.gz").write_bytes(gzip.compress(b"\0" * (1 << 20), 9) * 2048),
        source="rows.jsonl.gz",
    ),
    "a pickle": tried(holds(b"cos\nsystem\n(S'touch marker'\ntR.", "rows.pkl"), source="rows.pkl"),
    "a folder with a pickle": tried(holds(b"cos\nsystem\n(S'touch marker'\ntR.", "rows.pkl"), source=""),
    "an empty folder": tried(lambda folder: None, source=""),
    "README.md with a hub address": tried(readme('"hf://datasets/x/y/z.jsonl"'), source=""),
    "README.md with a bomb": tried(
        lambda folder: (folder / "README.md").write_text(
            "---\na0: &a0 [x,x,x,x,x,x,x,x,x]\n"
            + "".join(f"a{n}: &a{n} [{','.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 9))
            + "configs: *a8\n---\n"
        ),
        source="",
    ),
    "README.md with a network address": from_the_network,
    "a link out of the folder": tried(lambda folder: (folder / "train.jsonl").symlink_to("../secret.jsonl"), source=""),
}
PICTURES: dict[str, Callable[[Lab], Verdict]] = {
    "/dev/zero, skipped": picture(lambda folder: None, "/dev/zero", may_train=True, on_bad_row="skip"),
    "a FIFO, skipped": picture(lambda folder: os.mkfifo(folder / "a.png"), may_train=True, on_bad_row="skip"),
    "a folder": picture(lambda folder: (folder / "a.png").mkdir()),
    "a name of 10,000 letters": picture(lambda folder: None, "x" * 10_000),
    "an address": picture(lambda folder: None, "http://127.0.0.1:9/a.png"),
    "9990 x 10000 RGB": picture(png("RGB", 9990, 10_000)),
    "9990 x 10000 RGBA": picture(png("RGBA", 9990, 10_000)),
    "9990 x 10000, 16 bits": picture(png("I;16", 9990, 10_000)),
    "50000 x 50000, one bit": picture(png("1", 50_000, 50_000)),
    "100000 x 1": picture(png("RGB", 100_000, 1)),
    "SVG": picture(lambda folder: (folder / "a.svg").write_text("<svg onload='x'/>"), "a.svg"),
}

DRILLS = [
    *drills("data", FILES.items()),
    *drills("data", ((f"picture: {name}", body) for name, body in PICTURES.items())),
]
