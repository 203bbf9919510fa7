"""The child process that compares two LaTeX expressions with math-verify; started by `symbolic`.

Run as a file, alone: it imports nothing of this project (and no torch). One JSON request per line on
standard input, one JSON answer per line on standard output. Model text is only ever parsed as LaTeX; the
plain-expression extractor of math-verify, which evaluates Python syntax, stays off.
"""

from __future__ import annotations

import json
import os
import resource
import select
import signal
import sys
from typing import Any

_ORPHAN_CHECK_SECONDS = 2.0
_DIGITS = 100
_POINTS = ((7, 5), (13, 11), (29, 17))
_FAR_POINTS = ((-37, 11), (59, 6), (-3, 7))


def main() -> None:
    """Serve requests until the parent closes the pipe or is gone."""
    memory_mb = int(sys.argv[1])
    parent = os.getppid()
    answers = os.fdopen(os.dup(1), "w", encoding="ascii")
    # A library that prints must not write into the protocol.
    os.dup2(2, 1)
    resource.setrlimit(resource.RLIMIT_AS, (memory_mb << 20, memory_mb << 20))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    try:
        compare = _comparison()
    except ImportError as error:
        _send(answers, {"ready": False, "error": str(error)})
        return
    # The parser's tables and half of the algebra load with the first comparison, which must not run out of time.
    _guarded(compare, r"\pi-\tan^{-1}\left(\frac{1}{d}\right)", r"\pi-\arctan\frac{2}{2d}+\sqrt{0}")
    _send(answers, {"ready": True})

    pending = b""
    while True:
        # A pipe end inherited by a forked sibling of the parent would keep the pipe open: look for ourselves.
        readable, _, _ = select.select([0], [], [], _ORPHAN_CHECK_SECONDS)
        if not readable:
            if os.getppid() != parent:
                return
            continue
        chunk = os.read(0, 1 << 16)
        if not chunk:
            return
        pending += chunk
        while b"\n" in pending:
            line, pending = pending.split(b"\n", 1)
            request = json.loads(line)
            # The kernel ends this process when the parent is no longer there to do it: with SIGALRM at its
            # default action not even one long C call can hold it up.
            signal.setitimer(signal.ITIMER_REAL, request["seconds"] + 0.5)
            same = _guarded(compare, request["a"], request["b"])
            signal.setitimer(signal.ITIMER_REAL, 0)
            _send(answers, {"id": request["id"], "same": same})


def _send(stream: Any, message: dict[str, Any]) -> None:
    stream.write(json.dumps(message) + "\n")
    stream.flush()


def _guarded(compare: Any, a: str, b: str) -> bool:
    # Arbitrary text reaches a large parser here: whatever it raises means "not shown to be the same".
    try:
        return bool(compare(a, b))
    except (Exception, SystemExit):
        return False


def _comparison() -> Any:
    import logging

    logging.disable(logging.CRITICAL)
    from latex2sympy2_extended.latex2sympy2 import NormalizationConfig
    from math_verify import LatexExtractionConfig, parse, verify
    from sympy import Basic, Derivative, Eq, Expr, Float, Interval, Rational, functions, nan, nsimplify, zoo
    from sympy.core.relational import Relational

    kinks = tuple(getattr(functions, name) for name in ("Abs", "Max", "Min", "Piecewise", "ceiling", "floor", "sign"))
    # `units=True` would cut off trailing letters such as the c of `2c`.
    config = LatexExtractionConfig(
        boxed_match_priority=-1,
        normalization_config=NormalizationConfig(
            basic_latex=True, units=False, malformed_operators=True, nits=True, boxed="none", equations=False
        ),
    )

    def parsed(text: str) -> Basic | None:
        # Without the dollars math-verify would pick some number out of the text.
        found = parse(f"${text}$", extraction_config=[config], fallback_mode="no_fallback", parsing_timeout=None)
        if len(found) != 1 or not isinstance(found[0], Basic):
            return None
        tree = found[0]
        # `\frac{dv}{dt}` at a point is 0 whatever stands before it, and what is no number equals everything.
        if tree.has(Derivative, zoo, nan):
            return None
        return nsimplify(tree, rational=True) if isinstance(tree, Expr) and tree.has(Float) else tree

    def values(tree: Expr, names: list[str], points: tuple[tuple[int, int], ...] = _POINTS) -> list[Any]:
        out = []
        for shift, scale in points:
            point = {
                symbol: Rational(shift + 3 * names.index(symbol.name), scale + 2 * names.index(symbol.name))
                for symbol in tree.free_symbols
            }
            value = tree.subs(point).doit().evalf(_DIGITS)
            out.append(value if value.is_number and value.is_finite else None)
        return out

    def names_of(*trees: Basic) -> list[str]:
        return sorted({symbol.name for tree in trees for symbol in tree.free_symbols})

    def agree(a: Expr, b: Expr, points: tuple[tuple[int, int], ...]) -> int:
        """At how many points all digits are the same, however small both are; 0 when they tell the two apart."""
        names, compared = names_of(a, b), 0
        for left, right in zip(values(a, names, points), values(b, names, points), strict=True):
            if left is None or right is None:
                continue
            if abs(left - right) > Rational(1, 10 ** (_DIGITS - 10)) * max(abs(left), abs(right)):
                return 0
            compared += 1
        return compared

    def proportional(a: Relational, b: Relational) -> bool:
        """Whether two equations have one zero set because their differences are multiples of each other."""
        left, right = a.lhs - a.rhs, b.lhs - b.rhs
        names = names_of(left, right)
        ratios = []
        for above, below in zip(values(left, names), values(right, names), strict=True):
            if above is None or below is None or not above or not below:
                return False
            ratios.append(above / below)
        return all(abs(ratio - ratios[0]) <= Rational(1, 10**20) * abs(ratios[0]) for ratio in ratios)

    def compare(a_text: str, b_text: str) -> bool:
        a, b = parsed(a_text), parsed(b_text)
        if a is None or b is None:
            return False
        if isinstance(a, Expr) and isinstance(b, Expr):
            if not agree(a, b, _POINTS):
                return False
            # Smooth expressions that agree so far and on both sides of zero are equal; to simplify them takes long.
            if not (a.has(*kinks) or b.has(*kinks)) and agree(a, b, _FAR_POINTS) == len(_FAR_POINTS):
                return True
        elif isinstance(a, Relational) and isinstance(b, Relational):
            if not (type(a) is type(b) or {type(a), type(b)} <= set(_mirrored())):
                return False
            # math-verify takes two equations that it cannot solve for equal.
            if isinstance(a, Eq) and not proportional(a, b):
                return False
        elif not ({type(a), type(b)} & {Interval} or isinstance(a, Relational) or isinstance(b, Relational)):
            return False

        def holds(gold: Basic, prediction: Basic) -> bool:
            return verify(gold, prediction, timeout_seconds=None, allow_set_relation_comp=True)

        return holds(a, b) or holds(b, a)

    def _mirrored() -> tuple[type, ...]:
        from sympy import Ge, Gt, Le, Lt

        return (Ge, Gt, Le, Lt)

    return compare


if __name__ == "__main__":
    main()
