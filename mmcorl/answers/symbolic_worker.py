"""Worker process of `symbolic`: compare two LaTeX expressions with math-verify.

Runs as a script and imports nothing of this project (and no torch). One JSON request per line on standard input, one
JSON reply per line on standard output. Model text is only ever parsed as LaTeX; math-verify's plain-expression
extractor, which evaluates Python syntax, stays off.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import resource
import signal
import sys
import time
from typing import Any

_ORPHAN_CHECK_SECONDS = 2.0
_DIGITS = 100
_POINTS = ((7, 5), (13, 11), (29, 17))
_FAR_POINTS = ((-37, 11), (59, 6), (-3, 7))


def main() -> None:
    """Load the algebra system once, and serve requests in a fork, until the parent closes the pipe or dies.

    A comparison that exceeds its processor time ends its fork, even within a long C call; the next is ready at once.
    """
    memory_mb = int(sys.argv[1])
    parent = os.getppid()
    answers = os.fdopen(os.dup(1), "w", encoding="ascii")
    # A library that prints must not write into the protocol.
    os.dup2(2, 1)
    resource.setrlimit(resource.RLIMIT_AS, (memory_mb << 20, memory_mb << 20))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    try:
        compare = Comparer()
    except ImportError as error:
        _send(answers, {"ready": False, "error": str(error)})
        return
    # The first comparison loads the parser's tables and half of sympy; its time limit must not pay for that.
    _guarded(compare, r"\pi-\tan^{-1}\left(\frac{1}{d}\right)", r"\pi-\arctan\frac{2}{2d}+\sqrt{0}")
    gc.freeze()
    _send(answers, {"ready": True})
    while True:
        child = os.fork()
        if child == 0:
            # PR_SET_PDEATHSIG: the fork must not outlive a worker that is killed.
            ctypes.CDLL(None).prctl(1, signal.SIGKILL)
            _serve(compare, answers)
            os._exit(0)
        while (ended := os.waitpid(child, os.WNOHANG)) == (0, 0):
            signal.sigtimedwait({signal.SIGCHLD}, _ORPHAN_CHECK_SECONDS)
            # A forked sibling of the parent may hold the pipe open, so the end of the file alone is not enough.
            if os.getppid() != parent:
                os.kill(child, signal.SIGKILL)
                return
        if os.waitstatus_to_exitcode(ended[1]) == 0:
            return
        # Out of processor time or, in C code, of memory.
        _send(answers, {"same": False, "seconds": None})


def _serve(compare: Any, answers: Any) -> None:
    pending = b""
    while chunk := os.read(0, 1 << 16):
        pending += chunk
        while b"\n" in pending:
            line, pending = pending.split(b"\n", 1)
            request = json.loads(line)
            started = time.process_time()
            signal.setitimer(signal.ITIMER_PROF, request["seconds"])
            same = _guarded(compare, request["a"], request["b"])
            signal.setitimer(signal.ITIMER_PROF, 0)
            _send(answers, {"same": same, "seconds": time.process_time() - started})


def _send(stream: Any, message: dict[str, Any]) -> None:
    stream.write(json.dumps(message) + "\n")
    stream.flush()


def _guarded(compare: Any, a: str, b: str) -> bool:
    # Arbitrary text reaches a large parser: any exception means "not shown to be the same".
    try:
        return bool(compare(a, b))
    except (Exception, SystemExit):
        return False


class Comparer:
    """Compares LaTeX expressions; constructing one imports math-verify and sympy (ImportError without them)."""

    def __init__(self) -> None:
        import logging

        logging.disable(logging.CRITICAL)
        import math_verify
        import sympy
        from latex2sympy2_extended.latex2sympy2 import NormalizationConfig

        self._math_verify, self._sympy = math_verify, sympy
        self._kinks = tuple(
            getattr(sympy, name) for name in ("Abs", "Max", "Min", "Piecewise", "ceiling", "floor", "sign")
        )
        # `units=True` would cut off trailing letters such as the c of `2c`.
        self._config = math_verify.LatexExtractionConfig(
            boxed_match_priority=-1,
            normalization_config=NormalizationConfig(
                basic_latex=True, units=False, malformed_operators=True, nits=True, boxed="none", equations=False
            ),
        )

    def __call__(self, a_text: str, b_text: str) -> bool:
        """Return whether two expressions, relations or sets are shown to be equal."""
        sympy = self._sympy
        relational = sympy.core.relational.Relational
        a, b = self._parsed(a_text), self._parsed(b_text)
        if a is None or b is None:
            return False
        if isinstance(a, sympy.Expr) and isinstance(b, sympy.Expr):
            if not self._agreements(a, b, _POINTS):
                return False
            # Smooth expressions that agree here and on both sides of zero are equal; simplifying them takes long.
            if not (a.has(*self._kinks) or b.has(*self._kinks)) and (
                self._agreements(a, b, _FAR_POINTS) == len(_FAR_POINTS)
            ):
                return True
        elif isinstance(a, relational) and isinstance(b, relational):
            mirrored = {sympy.Ge, sympy.Gt, sympy.Le, sympy.Lt}
            if not (type(a) is type(b) or {type(a), type(b)} <= mirrored):
                return False
            # math-verify calls two equations equal when it can solve neither.
            if isinstance(a, sympy.Eq) and not self._proportional(a, b):
                return False
        elif not (sympy.Interval in (type(a), type(b)) or isinstance(a, relational) or isinstance(b, relational)):
            return False
        return self._verified(a, b) or self._verified(b, a)

    def _verified(self, gold: Any, prediction: Any) -> bool:
        return bool(self._math_verify.verify(gold, prediction, timeout_seconds=None, allow_set_relation_comp=True))

    def _parsed(self, text: str) -> Any:
        sympy = self._sympy
        # Without the dollars math-verify would pick some number out of the text.
        trees = self._math_verify.parse(
            f"${text}$", extraction_config=[self._config], fallback_mode="no_fallback", parsing_timeout=None
        )
        if len(trees) != 1 or not isinstance(trees[0], sympy.Basic):
            return None
        tree = trees[0]
        # At a point `\frac{dv}{dt}` is 0 whatever its factor, and nan equals everything.
        if tree.has(sympy.Derivative, sympy.zoo, sympy.nan):
            return None
        return sympy.nsimplify(tree, rational=True) if isinstance(tree, sympy.Expr) and tree.has(sympy.Float) else tree

    def _values(self, tree: Any, names: list[str], points: tuple[tuple[int, int], ...]) -> list[Any]:
        values = []
        for shift, scale in points:
            point = {
                symbol: self._sympy.Rational(shift + 3 * names.index(symbol.name), scale + 2 * names.index(symbol.name))
                for symbol in tree.free_symbols
            }
            value = tree.subs(point).doit().evalf(_DIGITS)
            values.append(value if value.is_number and value.is_finite else None)
        return values

    def _agreements(self, a: Any, b: Any, points: tuple[tuple[int, int], ...]) -> int:
        """Return at how many points all digits agree, however small both values are; 0 if any point differs."""
        names, agreements = _names_of(a, b), 0
        tolerance = self._sympy.Rational(1, 10 ** (_DIGITS - 10))
        for left, right in zip(self._values(a, names, points), self._values(b, names, points), strict=True):
            if left is None or right is None:
                continue
            if abs(left - right) > tolerance * max(abs(left), abs(right)):
                return 0
            agreements += 1
        return agreements

    def _proportional(self, a: Any, b: Any) -> bool:
        """Return whether the differences of two equations are multiples of each other, and so have one zero set."""
        left, right = a.lhs - a.rhs, b.lhs - b.rhs
        # Without an unknown there is no zero set to compare.
        if not (left.free_symbols and right.free_symbols):
            return False
        names = _names_of(left, right)
        ratios = []
        for above, below in zip(self._values(left, names, _POINTS), self._values(right, names, _POINTS), strict=True):
            if above is None or below is None or not above or not below:
                return False
            ratios.append(above / below)
        return all(abs(ratio - ratios[0]) <= self._sympy.Rational(1, 10**20) * abs(ratios[0]) for ratio in ratios)


def _names_of(*trees: Any) -> list[str]:
    return sorted({symbol.name for tree in trees for symbol in tree.free_symbols})


if __name__ == "__main__":
    main()
