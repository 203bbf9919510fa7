"""LogicVista: puzzles, diagrams and tables that ask for one of five kinds of logical reasoning.

Hub      lscpku/LogicVista, split test (448 rows). The authors' own copy is data/dataset.json with the folder images of
         Yijia-Xiao/LogicVista on GitHub: `logicvista=COPY/data/dataset.json`.
Columns  of the authors' copy: imagename, question, answer, reasoning, skill, broad_capability, specific_capability,
         imagesource, sourcelink, liscenced.
Licence  Apache-2.0; 161 rows come from commercial tests (`liscenced` is true).
Metric   accuracy, overall and by skill (inductive, deductive, numerical, spatial, mechanical) and capability;
         officially GPT-4 reads letters out of the response, and they must be the set of the answer.
Prompt   the question as stored.
Traps
- Three answers are two letters (`A, C`): both are asked for, in any order. One is a number (v1_20, of 1 to 5).
- Options stand in the picture or in the question; where the question has no text for each, an answer is a letter.
- v1_382 has neither question nor answer. It is officially one of the 448 and always wrong, as here.
- The column `capability` that the official script reads is not in the published file; v1_220 misspells `sourcelink`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any

from eval_suite.benchmarks.base import LETTERS, READ_THE_PICTURE, Benchmark, Row, content_ids, lettered
from mmcorl.grading.items import Item

_FIELDS = ("skill", "broad_capability", "specific_capability")
_RANGE = re.compile(r"\bA ?(?:-|to|through) ?([B-Z])\b")
_LAST = "E"
"""Last letter that an answer may name where a question does not say how many there are."""


def _id(row: Row) -> str:
    stored = row.get("imagename")
    name = stored.get("path") if isinstance(stored, Mapping) else stored
    return PurePosixPath(name).stem if isinstance(name, str) and name else row.text("_id")


def read(row: Row) -> Item:
    question, gold = (row.maybe_text("question") or "").strip(), (row.maybe_text("answer") or "").strip()
    asks: dict[str, Any] = {"question": question, "gold": gold}
    if gold and all(part in LETTERS for part in gold.split(", ")):
        asks = lettered(question, gold, max([*_RANGE.findall(question), _LAST]))
    return Item(
        "logicvista",
        _id(row),
        images=row.image("imagename"),
        meta={name: list(row.texts(name)) for name in _FIELDS if row.get(name) is not None},
        **asks | {"question": question or READ_THE_PICTURE},
    )


LOGICVISTA = Benchmark(
    name="logicvista",
    title="LogicVista",
    group="pictures",
    place=24,
    hub_id="lscpku/LogicVista",
    split="test",
    rows=448,
    columns=("imagename", "question", "answer", "reasoning", *_FIELDS, "imagesource", "sourcelink", "liscenced"),
    licence="Apache-2.0",
    read=read,
    optional=frozenset({"reasoning", *_FIELDS, "imagesource", "sourcelink", "liscenced"}),
    aliases={"imagename": ("image",)},
    names_all_columns=False,
    arrange=content_ids("question", "answer", "skill"),
    fields=_FIELDS,
)
