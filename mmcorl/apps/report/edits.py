"""What a reading changes of another one, letter by letter, for templates."""

from __future__ import annotations

import re

from mmcorl.answers.texts import edit_similarity

Edit = tuple[str, str]
"""`same`, `ins` or `del`, and the letters."""

ALIKE = 0.5
"""Similarity below which letters that happen to be the same say nothing: the whole reading is another one."""
_SPACES = re.compile(r"\s+")


def edits(reading: str, known: str) -> list[Edit]:
    """Return a reading in parts: what it has in common with a known one, what it inserts and what it leaves out.

    Letters are compared as the relation `edit` does, whatever their case and with single spaces.
    """
    from rapidfuzz.distance import Levenshtein

    said, wanted = (_SPACES.sub(" ", text).strip() for text in (reading, known))
    if edit_similarity(said, wanted) < ALIKE:
        return [(kind, text) for kind, text in (("del", wanted), ("ins", said)) if text]
    letters = [[letter.casefold() for letter in text] for text in (wanted, said)]
    parts: list[Edit] = []
    for step in Levenshtein.opcodes(*letters):
        left, right = wanted[step.src_start : step.src_end], said[step.dest_start : step.dest_end]
        if step.tag == "equal":
            parts.append(("same", right))
            continue
        parts += [(kind, text) for kind, text in (("del", left), ("ins", right)) if text]
    return _joined(parts)


def _joined(parts: list[Edit]) -> list[Edit]:
    """Put neighbouring insertions, and neighbouring deletions, together; deletions first."""
    joined: list[Edit] = []
    changed = {"del": "", "ins": ""}

    def close() -> None:
        joined.extend((kind, changed[kind]) for kind in ("del", "ins") if changed[kind])
        changed.update({"del": "", "ins": ""})

    for kind, text in parts:
        if kind == "same":
            close()
            joined.append((kind, text))
        else:
            changed[kind] += text
    close()
    return joined
