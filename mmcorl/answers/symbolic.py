"""Symbolic comparison in killable worker processes.

A computer-algebra system can hang in one long C call or exhaust memory on a short text, and no thread stops that. A
worker process has limits of processor time and memory, which the kernel enforces and which a busy machine does not
change. A limit of wall-clock time, enforced by the parent, is for a worker that is stopped or lost.
"""

from __future__ import annotations

import json
import os
import queue
import re
import selectors
import signal
import subprocess
import sys
import threading
import time
import weakref
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

from mmcorl.answers.grammar import GREEK
from mmcorl.errors import RunError

Outcome = Literal["same", "different", "timeout"]

_SCRIPT = Path(__file__).with_name("symbolic_worker.py")
_START_SECONDS = 120.0
_WALL_SECONDS = 60.0
"""Wall-clock limit of one comparison, beyond any processor time, on the busiest of machines."""
_WAKE_SECONDS = 1.0
_ATTEMPTS = 3

MAX_EXPRESSION = 1024
_MAX_NESTING = 32
_MAX_EXPONENT = 200
_MAX_BARS = 16
_REFUSED = re.compile(
    r"\\(?:int|iint|oint|sum|prod|lim|def|let|newcommand|input|include|approx|binom|ldots|in)(?![A-Za-z])"
    # Points of a figure and overlined digits are not factors: angle ABC is not angle ACB.
    r"|\\(?:angle|triangle|vec|overline|widehat|parallel|perp|sim|cong)(?![A-Za-z])"
    r"|__|[\"'`@#$?~;\n\x00-\x1f\x7f]|[^\x00-\x7f]|\d{65}|!"
    # `5 6` are two numbers, not a product, and neither is `1e25109`.
    r"|(?<![_\d])\d{1,64} \d{1,64}(?![\d/])|\d[eE]\d{3}"
    # `--5` may be a dash; three signs in a row, a trailing sign, two decimal points in a number and a power of a power
    # without braces are not mathematics.
    # Norms and bars cannot be told apart.
    r"|\\\||[%&]|--|\+\+|[-+*/^=<>]$|[-+*/^=<>]{3}|[|,.:]{3}|\d\.\d*\.|\^(?:\{[^{}]*\}|[^{}])\s*\^"
    r"|\\(?:left|right)(?![A-Za-z])"
)
_COMMAND = re.compile(r"\\[A-Za-z]+")
_PIECE = re.compile(r"\\[A-Za-z]+|\\.|.", re.DOTALL)
_CONSTANTS = GREEK | {r"\pi", r"\infty"}
# `2 h 35` is a time, `x2` a name and `cm2` a unit, not products; neither is the value of a function.
_NO_PRODUCT = re.compile(
    r"[A-Za-z] ?\d|(?<![\\_])[fghFGHPQ](?:_\w)?\(|(?<![\\_])[A-Za-z](?:_\w)?\( ?(?:-?[\d.]+|[A-Za-z]) ?\)"
)
_EXPONENT = re.compile(r"\^(?:\{([^{}]*)\}|(.))")
_NESTED_EXPONENT = re.compile(r"\^\{[^{}]*(?:\{[^{}]*\}[^{}]*)*\^")


def admissible(text: str) -> bool:
    """Return whether an expression is short, shallow and plain enough for a computer-algebra system.

    Rejects what is cheap to recognise and expensive to evaluate (power towers, large exponents, factorials, sums,
    integrals, deep nesting) and anything that is not LaTeX mathematics.
    """
    if not text or len(text) > MAX_EXPRESSION or _REFUSED.search(text) or _NESTED_EXPONENT.search(text):
        return False
    if not _balanced(text) or _NO_PRODUCT.search(_COMMAND.sub(r"\\", text)):
        return False
    if text.count("^") > 40 or text.count("|") > _MAX_BARS:
        return False
    for match in _EXPONENT.finditer(text):
        numbers = re.findall(r"\d+", match.group(1) or match.group(2) or "")
        if any(len(number) > 4 or int(number) > _MAX_EXPONENT for number in numbers):
            return False
    return True


def with_directed_bars(text: str) -> str:
    """Spell the bars of absolute values `\\lvert` and `\\rvert`; empty where they do not pair up.

    The parser cannot tell an opening bar from a closing one: of `|x||y||z|` it tries all pairings, takes a wrong one,
    and needs more than the square of their number. A bar closes behind an operand where one is open, else it opens.
    """
    if "|" not in text:
        return text
    pieces, open_bars, operand = [], [0], False
    for piece in _PIECE.findall(text):
        if piece == "|":
            operand = operand and open_bars[-1] > 0
            open_bars[-1] += -1 if operand else 1
            piece = r"\rvert " if operand else r"\lvert "
        elif piece[-1] in "([{":
            open_bars.append(0)
            operand = False
        elif piece[-1] in ")]}":
            if open_bars.pop():
                return ""
            operand = True
        elif piece[-1].isalnum():
            operand = piece[0] != "\\" or piece in _CONSTANTS
        elif piece in "+-*/=<>,:^_":
            operand = False
        pieces.append(piece)
    return "" if open_bars[-1] else "".join(pieces)


def _balanced(text: str) -> bool:
    """Whether brackets balance within `_MAX_NESTING`; `[0,1)` may mix round and square ones, not curly ones."""
    depth = curly = 0
    for char in text:
        depth += (char in "({[") - (char in ")}]")
        curly += (char == "{") - (char == "}")
        if not 0 <= curly <= depth <= _MAX_NESTING:
            return False
    return depth == curly == 0


class SymbolicPool:
    """Up to `workers` processes, started when first needed; usable from any thread.

    The processes end on `close`, when the pool is collected, and on their own when this process is gone, even by
    SIGKILL.
    """

    def __init__(self, workers: int, timeout: float, memory_mb: int) -> None:
        self._timeout = timeout
        self._memory_mb = memory_mb
        self._idle: queue.LifoQueue[_Worker] = queue.LifoQueue()
        self._workers = [_Worker(timeout, memory_mb) for _ in range(workers)]
        for worker in reversed(self._workers):
            self._idle.put(worker)

    def compare(self, a: str, b: str, seconds: float) -> tuple[Outcome, float]:
        """Return the outcome for two admissible expressions and its processor seconds, worker start excluded.

        A comparison longer than `seconds` of processor time is a `timeout`.
        """
        worker = self._idle.get()
        try:
            return worker.compare(a, b, min(seconds, self._timeout))
        finally:
            self._idle.put(worker)

    def start(self) -> None:
        """Start the processes that are not running, without waiting for them."""
        held = []
        try:
            while True:
                held.append(self._idle.get_nowait())
        except queue.Empty:
            pass
        for worker in reversed(held):
            worker.start()
            self._idle.put(worker)

    @property
    def pids(self) -> list[int]:
        """Process ids of the running workers."""
        return [pid for worker in self._workers if (pid := worker.pid) is not None]

    def close(self) -> None:
        """End every worker."""
        for worker in self._workers:
            worker.stop()


class _Worker:
    """One worker process and its pipes; used by one thread at a time."""

    def __init__(self, timeout: float, memory_mb: int) -> None:
        self._timeout = timeout
        self._memory_mb = memory_mb
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = 0
        self._ready = False
        self._finalizer: weakref.finalize[Any, Any] | None = None
        self._lock = threading.Lock()

    @property
    def pid(self) -> int | None:
        process = self._process
        return process.pid if process is not None and process.poll() is None else None

    def compare(self, a: str, b: str, seconds: float) -> tuple[Outcome, float]:
        # A worker that was killed or stopped from outside says nothing about the pair, which is asked again.
        for _ in range(_ATTEMPTS):
            process = self._ready_process()
            try:
                _write(process, json.dumps({"a": a, "b": b, "seconds": seconds}).encode("ascii") + b"\n")
                reply = _read_line(process, time.monotonic() + _WALL_SECONDS + 10 * seconds)
            except (_DeadlineError, BrokenPipeError, _WorkerExitedError):
                self.stop()
                continue
            if reply["seconds"] is None:
                return "timeout", seconds
            return "same" if reply["same"] else "different", reply["seconds"]
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
        """Start a process unless one runs, without waiting for it."""
        # After a fork the pipe belongs to the parent: the child starts its own worker.
        if self._process is not None and self._owner != os.getpid():
            self._process = None
        if self._process is not None and self._process.poll() is not None:
            self.stop()
        if self._process is not None:
            return
        # A separate session, because Ctrl-C or a SIGTERM to the group is for the parent to handle. A fixed hash seed
        # fixes the order of terms, and so every verdict. -P keeps this folder's module names off the import path.
        self._process = subprocess.Popen(
            [sys.executable, "-P", str(_SCRIPT), str(self._memory_mb)],
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
        for _ in range(_ATTEMPTS):
            self.start()
            process = self._process
            assert process is not None
            if self._ready:
                return process
            try:
                reply = _read_line(process, time.monotonic() + _START_SECONDS)
            except (_DeadlineError, _WorkerExitedError):
                self.stop()
                continue
            if not reply["ready"]:
                self.stop()
                raise RunError(f"the symbolic comparison process cannot import math-verify: {reply['error']}")
            self._ready = True
            return process
        raise RunError(
            f"the symbolic comparison process did not start in {_START_SECONDS:.0f} s and {self._memory_mb} MB, "
            f"{_ATTEMPTS} times: give the same command again, or see what it says alone: "
            f"{sys.executable} -P {_SCRIPT} {self._memory_mb}"
        )


class _DeadlineError(Exception):
    """No reply before the deadline."""


class _WorkerExitedError(Exception):
    """The worker process has ended."""


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
            if not selector.select(min(_WAKE_SECONDS, max(0.0, deadline - time.monotonic()))):
                if time.monotonic() >= deadline:
                    raise _DeadlineError
                # Continues a worker or its fork that something has stopped, and is nothing to one that runs.
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGCONT)
                continue
            chunk = os.read(descriptor, 1 << 12)
            if not chunk:
                raise _WorkerExitedError
            received += chunk
    reply: dict[str, Any] = json.loads(received)
    return reply


def _end(process: subprocess.Popen[bytes], owner: int) -> None:
    # A fork of the owner must not end its parent's worker.
    if owner != os.getpid():
        return
    # The group holds the worker and the fork that compares.
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            try:
                pipe.close()
            except BrokenPipeError:
                # Closing flushes a request that the killed worker never read.
                continue
