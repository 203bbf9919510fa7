"""A few rows of every training set and benchmark, in the schema that it is published in (`cases/walk.json`)."""

from __future__ import annotations

import base64
import hashlib
import io
import json
from pathlib import Path
from typing import Any

from PIL import Image, ImageDraw

from paths import CASES, FIXTURES

ROWS = range(1, 9)
WALK = json.loads((CASES / "walk.json").read_text())
CODE = json.loads((CASES / "code_rows.json").read_text())


def picture(number: int) -> bytes:
    """A picture like no other, of the 80 x 40 pixels that boxes are in."""
    image = Image.new("RGB", (80, 40), (20 * number % 256, 90, 160))
    ImageDraw.Draw(image).rectangle((20, 10, 40 + 2 * number, 30), fill=(250, 240 - 10 * number, 20))
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


def filled(value: Any, n: int) -> Any:
    """A value of the table for row n."""
    if isinstance(value, dict):
        return {key: filled(inner, n) for key, inner in value.items()}
    if isinstance(value, list):
        return [filled(inner, n) for inner in value]
    if value in ("$picture", "$further"):
        return {"bytes": picture(n if value == "$picture" else n + 20), "path": None}
    if value == "$uri":
        return "data:image/png;base64," + base64.b64encode(picture(n)).decode()
    if not isinstance(value, str):
        return value
    whole = {"#n": n, "$sha": hashlib.sha256(picture(n)).hexdigest()}
    return whole[value] if value in whole else value.replace("$02n", f"{n:02}").replace("$n", str(n))


def asked_by(recipe: str) -> dict[str, dict[str, Any]]:
    """What the rows of a recipe ask, by question, as far as the table says it; `images` are hashes."""
    asks = WALK["recipes"][recipe]["asks"]
    blank = {"gold": None, "choices": None, "images": 0, "code": False}
    asked = [blank | filled(asks[n % len(asks)], n) for n in ROWS]
    for n, one in zip(ROWS, asked, strict=True):
        one["images"] = [hashlib.sha256(picture(n)).hexdigest()] * one["images"]
    return {one.pop("question"): one for one in asked}


def published(recipe: str, folder: Path) -> dict[str, str]:
    """Write the rows of a training set as they are published; the data settings that find them."""
    made = WALK["recipes"][recipe]
    rows = [filled(made["rows"][n % len(made["rows"])], n) for n in ROWS]
    folder.mkdir(parents=True, exist_ok=True)
    for n in ROWS if "files" in made else ():
        file = folder / "pictures" / filled(made["files"], n)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(picture(n))
    if "$picture" in str(made):
        import datasets

        datasets.Dataset.from_list(rows).to_parquet(folder / "rows.parquet")
        return {"source": str(folder / "rows.parquet")}
    (folder / "rows.json").write_text(json.dumps(rows))
    return {"source": str(folder / "rows.json")} | ({"image_root": str(folder / "pictures")} if "files" in made else {})


def benchmark_rows(name: str, form_of: str | None, folder: Path) -> Path:
    """A file with rows of a benchmark: those of the repository, or one of the table."""
    names = [name, form_of or name, name.partition("_")[0], name.replace("_main", "_diamond")]
    for kept in (file for one in names for file in FIXTURES.glob(f"{one}.*")):
        return kept
    tables = {one: rows[0] for one, rows in CODE.items()} | WALK["benchmarks"]
    row = next(tables[one] for one in (*names, name[:7]) if one in tables)
    (folder / "test.jsonl").write_text(json.dumps(filled(row, 1)) + "\n")
    (folder / "images").mkdir()
    (folder / "images" / "1.png").write_bytes(picture(1))
    return folder / "test.jsonl"
