"""Symbolic comparison in processes that can be killed.

A computer-algebra system can hang in one long C call or fill the memory on a short text, and neither a
signal nor a thread stops that. So it runs elsewhere, with a wall-clock limit that the parent enforces by
killing the process and a memory limit that the kernel enforces.
"""

from __future__ import annotations

import json
import os
import queue
import re
import selectors
import subprocess
import sys
import threading
import time
import weakref
from pathlib import Path
from typing import Any, Literal

Outcome = Literal["same", "different", "timeout"]

_WORKER = Path(__file__).with_name("symbolic_worker.py")
_START_SECONDS = 120.0

MAX_EXPRESSION = 1024
_MAX_NESTING = 32
_MAX_EXPONENT = 200
_REFUSED = re.compile(
    r"\\(?:int|iint|oint|sum|prod|lim|def|let|newcommand|input|include|approx|binom|ldots|in)(?![A-Za-z])"
    # Points of a figure and digits under a line are no factors: angle ABC is not angle ACB.
    r"|\\(?:angle|triangle|vec|overline|widehat|parallel|perp|sim|cong)(?![A-Za-z])"
    r"|__|[\"'`@#$?~;\n\x00-\x1f\x7f]|[^\x00-\x7f]|\d{65}|!"
    # `5 6` are two numbers, not a product, and neither is `1e25109`.
    r"|(?<![_\d])\d{1,64} \d{1,64}(?![\d/])|\d[eE]\d{3}"
    # `--5` may be a dash; three signs in a row, one at the end, two points in a number and a power on a power
    # without braces are no mathematics.
    r"|[%&]|--|\+\+|[-+*/^=<>]$|[-+*/^=<>]{3}|[|,.:]{3}|\d\.\d*\.|\^(?:\{[^{}]*\}|[^{}])\s*\^"
    r"|\\(?:left|right)(?![A-Za-z])"
)
_COMMAND = re.compile(r"\\[A-Za-z]+")
# `2 h 35` is a time, `x2` a name and `cm2` a unit, not products.
_LETTER_THEN_NUMBER = re.compile(r"[A-Za-z] ?\d")
_EXPONENT = re.compile(r"\^(?:\{([^{}]*)\}|(.))")
_NESTED_EXPONENT = re.compile(r"\^\{[^{}]*(?:\{[^{}]*\}[^{}]*)*\^")


def admissible(text: str) -> bool:
    """Whether an expression is short, shallow and plain enough to be worth a computer-algebra system.

    Refuses what is cheap to recognise and dear to work out: towers of powers, large exponents, factorials,
    sums and integrals, deep nesting, and anything that is not LaTeX mathematics.
    """
    if not text or len(text) > MAX_EXPRESSION or _REFUSED.search(text) or _NESTED_EXPONENT.search(text):
        return False
    if not _balanced(text) or _LETTER_THEN_NUMBER.search(_COMMAND.sub(r"\\", text)):
        return False
    if text.count("^") > 40:
        return False
    for match in _EXPONENT.finditer(text):
        numbers = re.findall(r"\d+", match.group(1) or match.group(2) or "")
        if any(len(number) > 4 or int(number) > _MAX_EXPONENT for number in numbers):
            return False
    return True


def _balanced(text: str) -> bool:
    """Whether brackets close, and no deeper than is read; `[0,1)` may mix round and square ones, not curly ones."""
    depth = curly = 0
    for char in text:
        depth += (char in "({[") - (char in ")}]")
        curly += (char == "{") - (char == "}")
        if not 0 <= curly <= depth <= _MAX_NESTING:
            return False
    return depth == curly == 0


class SymbolicPool:
    """Up to `workers` processes that compare two expressions each; started when first needed.

    Safe to use from any thread. Close it, or let the owner be collected; the processes also end on their
    own when this one is gone, SIGKILL included.
    """

    def __init__(self, workers: int, timeout: float, memory_mb: int) -> None:
        self._timeout = timeout
        self._memory_mb = memory_mb
        self._slots: queue.LifoQueue[_Slot] = queue.LifoQueue()
        self._all = [_Slot(timeout, memory_mb) for _ in range(workers)]
        for slot in reversed(self._all):
            self._slots.put(slot)

    def compare(self, a: str, b: str, seconds: float) -> tuple[Outcome, float]:
        """Whether two admissible expressions are equal, and the seconds it took a worker that had started.

        Longer than `seconds` of wall-clock time is a `timeout`.
        """
        slot = self._slots.get()
        try:
            return slot.compare(a, b, min(seconds, self._timeout))
        finally:
            self._slots.put(slot)

    def start(self) -> None:
        """Start the processes that are not running, without waiting until they are ready."""
        held = []
        try:
            while True:
                held.append(self._slots.get_nowait())
        except queue.Empty:
            pass
        for slot in reversed(held):
            slot.start()
            self._slots.put(slot)

    @property
    def pids(self) -> list[int]:
        """Process ids of the workers now running."""
        return [pid for slot in self._all if (pid := slot.pid) is not None]

    def close(self) -> None:
        """End every worker now."""
        for slot in self._all:
            slot.stop()


class _Slot:
    """One worker process and the pipe to it; used by one thread at a time."""

    def __init__(self, timeout: float, memory_mb: int) -> None:
        self._timeout = timeout
        self._memory_mb = memory_mb
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = 0
        self._ready = False
        self._finalizer: weakref.finalize[Any, Any] | None = None
        self._request = 0
        self._lock = threading.Lock()

    @property
    def pid(self) -> int | None:
        process = self._process
        return process.pid if process is not None and process.poll() is None else None

    def compare(self, a: str, b: str, seconds: float) -> tuple[Outcome, float]:
        # A worker that was killed from outside between two requests is replaced once.
        for _ in range(2):
            process = self._ready_process()
            self._request += 1
            request = {"id": self._request, "a": a, "b": b, "seconds": seconds}
            started = time.monotonic()
            try:
                _write(process, json.dumps(request).encode("ascii") + b"\n")
                reply = _read_line(process, started + seconds)
            except _NoReplyError:
                self.stop()
                # The next comparison finds a worker that has already begun to load.
                self.start()
                return "timeout", seconds
            except (BrokenPipeError, _GoneError):
                self.stop()
                continue
            return "same" if reply["same"] else "different", time.monotonic() - started
        # Two workers died on this pair (out of memory in C code): it costs what a timeout costs.
        return "timeout", seconds

    def stop(self) -> None:
        with self._lock:
            process, self._process = self._process, None
            if process is None:
                return
            if self._finalizer is not None:
                self._finalizer.detach()
            _end(process, self._owner)

    def start(self) -> None:
        """Begin to start a process unless one runs; returns at once."""
        # After a fork the pipe belongs to the parent: the child starts its own worker.
        if self._process is not None and self._owner != os.getpid():
            self._process = None
        if self._process is not None and self._process.poll() is not None:
            self.stop()
        if self._process is not None:
            return
        # Its own session: Ctrl-C or a SIGTERM to the group is the parent's to handle. A fixed hash seed: term
        # order, and with it every verdict, is the same in each run. -P: this folder's module names stay out
        # of the worker's import path.
        self._process = subprocess.Popen(
            [sys.executable, "-P", str(_WORKER), str(self._memory_mb)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            env={**os.environ, "PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1"},
        )
        self._ready = False
        self._owner = os.getpid()
        self._finalizer = weakref.finalize(self, _end, self._process, self._owner)

    def _ready_process(self) -> subprocess.Popen[bytes]:
        self.start()
        process = self._process
        assert process is not None
        if self._ready:
            return process
        try:
            reply = _read_line(process, time.monotonic() + _START_SECONDS)
        except (_NoReplyError, _GoneError) as error:
            self.stop()
            raise RuntimeError(
                f"the symbolic comparison process did not start in {_START_SECONDS:.0f} s "
                f"and {self._memory_mb} MB; "
                f"try it alone: {sys.executable} -P {_WORKER} {self._memory_mb}"
            ) from error
        if not reply["ready"]:
            self.stop()
            raise RuntimeError(f"the symbolic comparison process cannot import math-verify: {reply['error']}")
        self._ready = True
        return process


class _NoReplyError(Exception):
    """The deadline passed."""


class _GoneError(Exception):
    """The worker ended."""


def _write(process: subprocess.Popen[bytes], line: bytes) -> None:
    assert process.stdin is not None
    process.stdin.write(line)
    process.stdin.flush()


def _read_line(process: subprocess.Popen[bytes], deadline: float) -> dict[str, Any]:
    assert process.stdout is not None
    descriptor = process.stdout.fileno()
    received = b""
    with selectors.DefaultSelector() as selector:
        selector.register(descriptor, selectors.EVENT_READ)
        while not received.endswith(b"\n"):
            if not selector.select(max(0.0, deadline - time.monotonic())):
                raise _NoReplyError
            chunk = os.read(descriptor, 1 << 12)
            if not chunk:
                raise _GoneError
            received += chunk
    reply: dict[str, Any] = json.loads(received)
    return reply


def _end(process: subprocess.Popen[bytes], owner: int) -> None:
    # In a fork of the owner this is somebody else's process.
    if owner != os.getpid():
        return
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            try:
                pipe.close()
            except BrokenPipeError:
                # Closing flushes a request that the killed worker never read.
                continue
