"""Replies that need not be asked for again, in one SQLite file that several processes may share."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Self

from mmcorl.errors import RunError, UserError

_WAIT = 60.0
"""Seconds to wait while another process writes."""
_AT_ONCE = 500
"""Keys per query; SQLite allows 999 in its older builds."""


class ReplyCache:
    """What a model replied, by content key; use it as a context manager.

    The first reply on a key stays, so two processes that ask the same question agree from then on. Written with a
    rollback journal, as SQLite's write-ahead log does not work on network file systems, where home folders live.

    Raises:
        UserError: the file is no such cache, or was written by another version.
        RunError: it cannot be read or written.
    """

    NAME: ClassVar[str] = "reply cache"
    """What it is called in sentences."""
    TABLE: ClassVar[str] = "replies"
    SCHEMA: ClassVar[int] = 101
    """Differs from that of every other kind of cache, and grows with each change."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        # Writes come from a thread, one at a time.
        self._lock = threading.Lock()
        with self._told():
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._connection = sqlite3.connect(self.path, timeout=_WAIT, isolation_level=None, check_same_thread=False)
        try:
            self._open()
        except BaseException:
            self._connection.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let the file go."""
        with self._lock:
            self._connection.close()

    def get(self, keys: Sequence[str]) -> dict[str, str]:
        """The replies that are known of `keys`."""
        found: dict[str, str] = {}
        with self._lock, self._told():
            for start in range(0, len(keys), _AT_ONCE):
                block = keys[start : start + _AT_ONCE]
                marks = ",".join("?" * len(block))
                found.update(
                    self._connection.execute(f"SELECT key, reply FROM {self.TABLE} WHERE key IN ({marks})", block)
                )
        return found

    def put(self, replies: Mapping[str, str]) -> dict[str, str]:
        """Keep replies, on disk when this returns; returns those that hold, which another process may have set."""
        with self._lock, self._told():
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                self._connection.executemany(f"INSERT OR IGNORE INTO {self.TABLE} VALUES (?, ?)", replies.items())
                self._connection.execute("COMMIT")
            except BaseException:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise
        return self.get(list(replies))

    def forget(self, keys: Sequence[str]) -> None:
        """Drop the replies to `keys`, so that they are asked for again."""
        with self._lock, self._told():
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                self._connection.executemany(f"DELETE FROM {self.TABLE} WHERE key = ?", [(key,) for key in keys])
                self._connection.execute("COMMIT")
            except BaseException:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise

    def _open(self) -> None:
        with self._told():
            self._connection.execute("PRAGMA journal_mode=DELETE")
            # One transaction, or two processes that start together could each find a half-made file.
            self._connection.execute("BEGIN IMMEDIATE")
            (version,) = self._connection.execute("PRAGMA user_version").fetchone()
            (tables,) = self._connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
            if version != self.SCHEMA and (version or tables):
                raise UserError(
                    f"the file {self.path} is no {self.NAME} of this version (it says {version}, not {self.SCHEMA}); "
                    "move it away or name another."
                )
            if not version:
                self._connection.execute(
                    f"CREATE TABLE {self.TABLE} (key TEXT PRIMARY KEY, reply TEXT NOT NULL) WITHOUT ROWID"
                )
                self._connection.execute(f"PRAGMA user_version={self.SCHEMA}")
            self._connection.execute("COMMIT")

    @contextmanager
    def _told(self) -> Iterator[None]:
        """SQLite's and the system's errors as sentences."""
        try:
            yield
        except (sqlite3.OperationalError, OSError) as error:
            raise RunError(
                f"the {self.NAME} {self.path} cannot be used ({error}); what was told already is safe: "
                "free space, mend its permissions or name another file, and run the same command again."
            ) from error
        except sqlite3.DatabaseError as error:
            raise UserError(
                f"the file {self.path} is no {self.NAME} ({error}); move it away or name another."
            ) from error
