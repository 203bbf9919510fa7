"""The record of the data check, by which a resumed run need not decode every image again."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from mmcorl.data.checks import DataCheck, Finding, fingerprint
from mmcorl.data.mixture import Rows
from mmcorl.data.row_parsing import BadRow


def cache_key(source: Rows, *parts: Any) -> str:
    """Hash what a check depends on besides the rows: the data settings and `parts` (JSON)."""
    content = [source.settings.model_dump(mode="json"), *parts]
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


def to_record(check: DataCheck, source: Rows, key: str) -> dict[str, Any]:
    """Return the entry of data_check.json for a check with this cache key."""
    rows = {"kept_rows": _spans(check.kept), "texts": source.fingerprint}
    return {**check.to_json(), **rows, "circumstances": key}


def from_record(record: Mapping[str, Any], source: Rows, key: str) -> DataCheck | None:
    """Return the recorded check if it still holds, else None.

    The kept rows are read and hashed, images included, but neither decoded nor encoded for the agents.
    """
    if record.get("circumstances") != key or record["rows"] != len(source) or record["texts"] != source.fingerprint:
        return None
    kept = tuple(row for first, end in record["kept_rows"] for row in range(first, end))
    try:
        uids = tuple(source.read(row)[0].uid for row in kept)
    except BadRow:
        return None
    if fingerprint(uids) != record["fingerprint"]:
        return None
    findings = tuple(Finding(**finding) for finding in record["findings"])
    known = {name: record[name] for name in ("source", "rows", "counts", "notes", "answers", "longest", "fingerprint")}
    return DataCheck(**known, kept=kept, uids=uids, findings=findings)


def differs(record: Mapping[str, Any], check: DataCheck, source: Rows) -> bool:
    """Whether a record is of other rows, answers included, than those that `check` found usable."""
    return (record["fingerprint"], record["texts"]) != (check.fingerprint, source.fingerprint)


def _spans(rows: Sequence[int]) -> list[list[int]]:
    """Growing numbers as [first, end) spans: 0 1 2 5 becomes [0, 3], [5, 6]."""
    if not rows:
        return []
    breaks = [(before + 1, after) for before, after in pairwise(rows) if after != before + 1]
    starts = [rows[0], *(after for _, after in breaks)]
    ends = [*(end for end, _ in breaks), rows[-1] + 1]
    return [list(span) for span in zip(starts, ends, strict=True)]
