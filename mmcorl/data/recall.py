"""The check of the data, done once per run: a resume recalls what it found instead of looking at every image again."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from mmcorl.data.check import DataCheck, Finding
from mmcorl.data.reading import BadRow
from mmcorl.data.sources import PromptSource


def circumstances(source: PromptSource, *parts: Any) -> str:
    """Hash of what a check depends on besides images: the rows' texts, the data settings and `parts` (JSON)."""
    content = [len(source), source.fingerprint, source.settings.model_dump(mode="json"), *parts]
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


def to_record(check: DataCheck, key: str) -> dict[str, Any]:
    """What data_check.json holds of a check made under the circumstances `key`."""
    return {**check.to_json(), "kept_rows": _spans(check.kept), "circumstances": key}


def from_record(record: Mapping[str, Any], source: PromptSource, key: str) -> DataCheck | None:
    """The recorded check if it still holds, else None.

    The kept rows are read and hashed, images included, but neither decoded nor encoded for the agents.
    """
    if record.get("circumstances") != key:
        return None
    kept = tuple(row for first, end in record["kept_rows"] for row in range(first, end))
    if _fingerprint(source, kept) != record["fingerprint"]:
        return None
    findings = tuple(Finding(**finding) for finding in record["findings"])
    known = {name: record[name] for name in ("source", "rows", "counts", "notes", "answers", "longest", "fingerprint")}
    return DataCheck(**known, kept=kept, findings=findings)


def _fingerprint(source: PromptSource, kept: Iterable[int]) -> str | None:
    """As in `DataCheck.fingerprint`; None where a row is no longer readable."""
    try:
        uids = [source.read(row)[0].uid for row in kept]
    except BadRow:
        return None
    return hashlib.sha256(" ".join(uids).encode()).hexdigest()[:16]


def _spans(rows: Sequence[int]) -> list[list[int]]:
    """Growing numbers as [first, end) spans: 0 1 2 5 becomes [0, 3], [5, 6]."""
    if not rows:
        return []
    breaks = [(before + 1, after) for before, after in pairwise(rows) if after != before + 1]
    starts = [rows[0], *(after for _, after in breaks)]
    ends = [*(end for end, _ in breaks), rows[-1] + 1]
    return [list(span) for span in zip(starts, ends, strict=True)]
