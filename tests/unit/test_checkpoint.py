"""Checkpoints: all or nothing, verified, pruned."""

from __future__ import annotations

import errno
import hashlib
import json
import shutil
from pathlib import Path

import pytest

from mmcorl.run import checkpoints


def write(folder: Path) -> None:
    (folder / "a").mkdir()
    (folder / "a" / "weights.bin").write_text("weights")


def commit(folder: Path, step: int, **scores: float | None) -> checkpoints.Committed:
    return checkpoints.commit(folder, step, write, {}, scores)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_set_appears_whole_with_its_record(tmp_path: Path) -> None:
    digest = hashlib.sha256(b"weights").hexdigest()
    made = checkpoints.commit(tmp_path, 4, write, {"metrics.jsonl": (12, "abc")}, {"validation": 1})
    assert checkpoints.committed(tmp_path) == [made]
    *content, last = (tmp_path / "step_000004" / "COMMIT").read_bytes().splitlines(keepends=True)
    assert last.decode() == f"sha256 of the above: {hashlib.sha256(b''.join(content)).hexdigest()}\n"
    assert json.loads(b"".join(content)) == {
        "step": 4,
        "files": {"a/weights.bin": 7},
        "sha256": {"a/weights.bin": digest},
        "logs": {"metrics.jsonl": 12},
        "logs_sha256": {"metrics.jsonl": "abc"},
        "scores": {"validation": 1.0},
    }
    made.verify()
    (made.path / "a" / "weights.bin").write_text("weighty")
    with pytest.raises(checkpoints.DamagedError, match=r"the content of a/weights.bin has changed"):
        made.verify()


def test_nothing_appears_when_writing_fails(tmp_path: Path) -> None:
    first = commit(tmp_path, 1)

    def full(folder: Path) -> None:
        write(folder)
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        checkpoints.commit(tmp_path, 2, full, {}, {})
    assert names(tmp_path) == ["step_000001"]
    assert checkpoints.committed(tmp_path) == [first]


def test_stray_files_change_nothing_and_stay(tmp_path: Path) -> None:
    strays = [tmp_path / name for name in ("step_zzz", "step_000009", "notes.txt", "damaged_step_000001")]
    for file in strays:
        file.write_text("mine")
    for step in (1, 2, 3):
        commit(tmp_path, step)
    checkpoints.prune(tmp_path, 2)
    assert [checkpoint.step for checkpoint in checkpoints.committed(tmp_path)] == [2, 3]
    assert [file.read_text() for file in strays] == ["mine"] * 4


def test_what_has_no_commit_is_not_looked_at_and_swept(tmp_path: Path) -> None:
    commit(tmp_path, 1)
    (tmp_path / "step_000002" / "a").mkdir(parents=True)  # half removed
    (tmp_path / ".partial_000003").mkdir()  # half written
    assert [checkpoint.step for checkpoint in checkpoints.committed(tmp_path)] == [1]
    checkpoints.prune(tmp_path, keep_last=1)
    assert names(tmp_path) == ["step_000001"]
    # A step can be committed over what a kill left of it.
    (tmp_path / "step_000002" / "old").mkdir(parents=True)
    (tmp_path / ".partial_000002" / "old").mkdir(parents=True)
    commit(tmp_path, 2)
    assert names(tmp_path / "step_000002") == ["COMMIT", "a"]


# Best by validation is step 3 (0.9), by agreement step 1 (0.7, the earlier of two equals).
@pytest.mark.parametrize(("keep_last", "left"), [(1, [1, 3, 5]), (2, [1, 3, 4, 5]), (9, [1, 2, 3, 4, 5])])
def test_the_newest_and_the_best_by_each_score_are_kept(keep_last: int, left: list[int], tmp_path: Path) -> None:
    scores = [(0.1, 0.7), (0.5, 0.6), (0.9, 0.2), (None, None), (0.8, 0.7)]
    for step, (validation, agreement) in enumerate(scores, start=1):
        commit(tmp_path, step, validation=validation, agreement=agreement)
        checkpoints.prune(tmp_path, keep_last)
    assert [checkpoint.step for checkpoint in checkpoints.committed(tmp_path)] == left
    assert (tmp_path / "best-by-validation").resolve().name == "step_000003"
    assert (tmp_path / "best-by-agreement").resolve().name == "step_000001"
    assert not (tmp_path / "best-by-validation").readlink().is_absolute()  # the run folder can be moved


DAMAGED = r"""

{
[]
{}
{"step": 2, "files": {}}
{"step": "2", "files": {}, "logs": {}}
{"step": 1000000000, "files": {}, "logs": {}}
{"step": 2, "files": {"a": -1}, "logs": {}}
{"step": 2, "files": {}, "logs": 3}
{"step": 2, "files": {}, "logs": {}, "scorez": {}}
{"step": 2, "files": {"a": 1}, "sha256": {"b": "0"}, "logs": {}}
{"step": 2, "files": {}, "logs": {"a": 1, "b": 1}, "logs_sha256": {"a": "0"}}
{"step": 2, "files": {}, "logs": {}} sha256 of the above: 0
"""


@pytest.mark.parametrize("bits", [1, pytest.param(8, marks=pytest.mark.slow)])
def test_a_flipped_bit_of_a_commit_is_noticed(bits: int, tmp_path: Path) -> None:
    made = checkpoints.commit(tmp_path, 4, write, {"metrics.jsonl": (12, "a")}, {"validation": 1}, changed=["a.py"])
    file = made.path / "COMMIT"
    whole = file.read_bytes()
    for place in range(bits * len(whole)):
        data = bytearray(whole)
        data[place // bits] ^= 1 << place % 8
        file.write_bytes(data)
        with pytest.raises(checkpoints.DamagedError):
            checkpoints.read(made.path)
    # Cut anywhere, it is no record either.
    end = whole.index(b"sha256 of the above")
    for length in (*range(0, len(whole), 11), end - 1, end, len(whole) - 1):
        file.write_bytes(whole[:length])
        with pytest.raises(checkpoints.DamagedError):
            checkpoints.read(made.path)


def test_links_that_a_copy_followed_are_made_anew(tmp_path: Path) -> None:
    for step, score in ((1, 0.9), (2, 0.1)):
        commit(tmp_path, step, agreement=score, validation=score)
    for score in ("agreement", "validation"):
        shutil.copytree(tmp_path / "step_000001", tmp_path / f"best-by-{score}")
    checkpoints.prune(tmp_path, 1)
    assert [(tmp_path / f"best-by-{score}").readlink().name for score in ("agreement", "validation")] == [
        "step_000001",
        "step_000001",
    ]
    # Something else of that name is not removed.
    (tmp_path / "best-by-agreement").unlink()
    (tmp_path / "best-by-agreement").mkdir()
    (tmp_path / "best-by-agreement" / "COMMIT").write_text("{}")
    with pytest.raises(IsADirectoryError):
        checkpoints.prune(tmp_path, 1)
    assert names(tmp_path / "best-by-agreement") == ["COMMIT"]


@pytest.mark.parametrize("content", [*DAMAGED.splitlines()[1:], "[" * 100_000])
def test_a_damaged_commit_is_no_checkpoint_and_stays(content: str, tmp_path: Path) -> None:
    first = commit(tmp_path, 1)
    commit(tmp_path, 2)
    (tmp_path / "step_zzz").write_text("not ours")
    (tmp_path / "step_000002" / "COMMIT").write_text(content)
    with pytest.raises(checkpoints.DamagedError, match=r"step_000002/COMMIT' is damaged \("):
        checkpoints.read(tmp_path / "step_000002")
    assert checkpoints.committed(tmp_path) == [first]
    checkpoints.prune(tmp_path, keep_last=1)
    assert names(tmp_path) == ["step_000001", "step_000002", "step_zzz"]
    # Set aside it stays until its step has been reached again.
    checkpoints.set_aside(tmp_path / "step_000002")
    checkpoints.prune(tmp_path, keep_last=1)
    assert names(tmp_path) == ["damaged_step_000002", "step_000001", "step_zzz"]
    commit(tmp_path, 2)
    checkpoints.prune(tmp_path, keep_last=1)
    assert names(tmp_path) == ["step_000002", "step_zzz"]


def caused(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (OSError(errno.ENOSPC, "x"), "No space left on device"),
        (caused(ValueError("while saving"), OSError(errno.EDQUOT, "x")), "Disk quota exceeded"),
        (RuntimeError("Error while serializing: I/O error: File too large (os error 27)"), "File too large"),
        (
            caused(
                RuntimeError("[enforce fail at inline_container.cc:672] . unexpected pos 576 vs 534"),
                RuntimeError("basic_ios::clear: iostream error"),
            ),
            "a file could not be written in full",
        ),
        (OSError(errno.ENOENT, "No such file"), None),
        (RuntimeError("I/O error: Permission denied (os error 13)"), None),
        (ValueError("mat1 and mat2 shapes cannot be multiplied"), None),
    ],
)
def test_a_full_disk_is_told_from_other_errors(error: Exception, reason: str | None) -> None:
    assert checkpoints.no_room(error) == reason
