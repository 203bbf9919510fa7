"""What ties a row of a view to the row it rewords, so that neither can change unnoticed."""

from __future__ import annotations

import hashlib

ORIGINAL = "original_uid"
"""Column of a view: the content hash (`Prompt.uid`) of the row that is reworded. Checked wherever it exists."""
SEAL = "seal"
"""Column of a view: the hash of id, `original_uid` and question. Checked wherever both columns exist."""
REASON = "reason"
"""Column of a view: why a row has no question."""


def seal(row_id: str, original_uid: str, question: str) -> str:
    """Hash of one row of a view, each part with its length in front."""
    digest = hashlib.sha256()
    for part in (row_id, original_uid, question):
        content = part.encode("utf-8", "surrogatepass")
        digest.update(f"{len(content)}:".encode())
        digest.update(content)
    return digest.hexdigest()[:16]
