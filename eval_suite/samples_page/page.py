"""Writes the samples page: all rows as data, drawn on demand by one script.

Text of models and data is in the page only as JSON and is shown only through `textContent`; the content policy allows
no other script and no request.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, Literal

from markupsafe import Markup

from eval_suite.folder import item_from_row
from eval_suite.items import Response
from eval_suite.metrics.outcomes import Outcome, outcomes_of
from eval_suite.samples_page.data import Texts, filters, item_data, row_data
from eval_suite.samples_page.images import collect_images
from eval_suite.tables import title as benchmark_title
from mmcorl.report.page import render
from mmcorl.run.folder import atomic_write

IMAGE_BUDGET = 24 * 2**20
"""Bytes of thumbnails up to which they stand in the page itself: MathVista's fit, MathVision's do not."""
TEXT_BUDGET = 64 * 2**20
"""Characters of responses in a page; a browser opens as many in about a second. Longer ones lose their middle."""


@dataclass(frozen=True)
class View:
    """What was written."""

    path: Path
    rows: int
    images: Literal["none", "embedded", "linked"]
    """`linked`: the page reads them from files beside it."""
    shortened: int
    """Responses whose middle was left out."""


def write_view(
    target: Path,
    *,
    title: str,
    item_rows: Sequence[Mapping[str, Any]],
    responses: Iterable[Response],
    rule_rows: Iterable[Mapping[str, Any]],
    judge_rows: Iterable[Mapping[str, Any]] = (),
    facts: Sequence[tuple[str, str]] = (),
    image_budget: int = IMAGE_BUDGET,
    text_budget: int = TEXT_BUDGET,
) -> View:
    """Write one self-contained page of all responses, graded; replaced in one piece.

    Args:
        target: the page; thumbnails are looked up relative to its folder, so it belongs into the eval folder.
        item_rows, responses, rule_rows, judge_rows: lines of the files of these names; the last line of a key holds.
        facts: (name, value) pairs for the head of the page: model, prompt style, grader, judge, ...
        image_budget: bytes of thumbnails up to which all are put into the page; else all are read from their files.
        text_budget: characters of responses in the page; above it the longest lose their middle, marked.

    Raises:
        UserError: responses that do not fit the items or are not graded.
    """
    responses, judge_rows = list(responses), list(judge_rows)
    items = [item_from_row(row) for row in item_rows]
    outcomes = outcomes_of(items, responses, rule_rows, judge_rows)
    raw = {(row["benchmark"], row["id"], row["sample"]): row.get("raw") for row in judge_rows}
    given = {(one.benchmark, one.id, one.sample): one for one in responses}
    place = {(item.benchmark, item.id): number for number, item in enumerate(items)}
    images = collect_images(target.parent, [row.get("images") or () for row in item_rows], image_budget)
    texts = Texts([one.text for one in responses], text_budget)
    data = {
        "items": [item_data(item, shown) for item, shown in zip(items, images.by_item, strict=True)],
        "rows": [
            row_data(place[outcome.benchmark, outcome.id], outcome, given.get(outcome.key), raw.get(outcome.key), texts)
            for outcome in outcomes
        ],
        "images": images.sources,
        "filters": filters(items),
    }
    theme = resources.files("mmcorl.report") / "templates" / "theme.css"
    folder = resources.files("eval_suite.samples_page") / "templates"
    style, script = ((folder / name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
    style = theme.read_text(encoding="utf-8") + style
    pictures = {"none": "'none'", "embedded": "data:", "linked": "'self' file:"}[images.kind]
    policy = (
        f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; img-src {pictures}; "
        "base-uri 'none'; form-action 'none'"
    )
    page = render(
        "samples.html",
        package="eval_suite.samples_page",
        title=title,
        facts=facts,
        scores=_scores(outcomes),
        policy=policy,
        style=Markup(style),
        script=Markup(script),
        data=Markup(_json(data)),
        images=images,
        texts=texts,
        rows=len(outcomes),
    )
    atomic_write(target, page)
    return View(target, len(outcomes), images.kind, texts.shortened)


def _json(data: Any) -> str:
    """JSON that no text can leave: inside a script element only `<` could end it."""
    text = json.dumps(data, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _scores(outcomes: Iterable[Outcome]) -> list[tuple[str, int, int]]:
    """Right responses and all responses by benchmark."""
    tally: dict[str, tuple[int, int]] = {}
    for outcome in outcomes:
        right, total = tally.get(outcome.benchmark, (0, 0))
        tally[outcome.benchmark] = right + outcome.correct, total + 1
    return [(benchmark_title(name), right, total) for name, (right, total) in tally.items()]
