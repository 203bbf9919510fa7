"""The verdict cache: shared by processes, the first verdict stays, and a wrong file is refused in a sentence."""

from __future__ import annotations

import sqlite3
import subprocess
import sys

import pytest

from eval_suite.grading.judge import VerdictCache
from mmcorl.errors import RunError, UserError
from paths import ROOT


def test_replies_are_kept_and_the_first_one_stays(tmp_path):
    path = tmp_path / "new" / "judge.sqlite"
    with VerdictCache(path) as cache:
        assert cache.get(["a"]) == {}
        assert cache.put({"a": "correct", "b": "Incorrect."}) == {"a": "correct", "b": "Incorrect."}
    with VerdictCache(path) as cache:
        assert cache.put({"a": "incorrect"}) == {"a": "correct"}
        assert cache.get(["a", "b", "c"]) == {"a": "correct", "b": "Incorrect."}


def test_more_keys_than_a_query_takes(tmp_path):
    with VerdictCache(tmp_path / "j.sqlite") as cache:
        many = {str(n): "correct" for n in range(1700)}
        cache.put(many)
        assert cache.get([*many, "none"]) == many


WRITER = """
import sys
from eval_suite.grading.judge.cache import VerdictCache
path, word = sys.argv[1:]
print("ready", flush=True)
sys.stdin.readline()
with VerdictCache(path) as cache:
    for start in range(0, 200, 10):
        cache.put({str(n): word for n in range(start, start + 10)})
    held = cache.get([str(n) for n in range(200)])
print(*(held[str(n)] for n in range(200)))
"""


def test_two_processes_start_on_one_file_at_once_and_agree(tmp_path):
    path = str(tmp_path / "j.sqlite")
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, path, word],
            cwd=ROOT,
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        for word in ("correct", "incorrect")
    ]
    for writer in writers:
        assert writer.stdout.readline() == "ready\n"
    for writer in writers:
        writer.stdin.write("go\n")
        writer.stdin.flush()
    told = [writer.communicate(timeout=60)[0].split() for writer in writers]
    assert [writer.returncode for writer in writers] == [0, 0]
    assert len(told[0]) == 200
    assert told[0] == told[1]


def test_a_file_that_is_no_cache_is_refused_and_left_alone(tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text("my notes " * 500)
    with pytest.raises(UserError, match=r"notes\.txt is no verdict cache .*; move it away or name another\.$"):
        VerdictCache(path)
    assert path.read_text().startswith("my notes")
    other = tmp_path / "other.sqlite"
    with sqlite3.connect(other) as connection:
        connection.execute("CREATE TABLE things (x)")
    connection.close()
    with pytest.raises(UserError, match=r"says 0, not 1.*move it away"):
        VerdictCache(other)


def test_a_cache_that_cannot_be_written_fails_in_a_sentence(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="cannot be used"):
        VerdictCache(tmp_path / "file" / "j.sqlite")
    with pytest.raises(RunError, match="cannot be used"):
        VerdictCache(tmp_path)


def test_a_full_disk_fails_in_a_sentence_and_keeps_what_was_there(tmp_path):
    path = tmp_path / "j.sqlite"
    with VerdictCache(path) as cache:
        cache.put({"a": "correct"})
        (pages,) = cache._connection.execute("PRAGMA page_count").fetchone()
        cache._connection.execute(f"PRAGMA max_page_count={pages}")
        with pytest.raises(RunError, match="full"):
            cache.put({str(n) * 40: "correct" for n in range(500)})
        assert cache.get(["a"]) == {"a": "correct"}
