r"""The grammar of answers: what an answer says, or that it is opaque.

An answer is read by these rules from the top, after markup was brought to one spelling (`latex.clean`). What none of
them derives as a whole is opaque: it equals its own spelling and nothing else. No rule skips text, so a word, sign or
language that is not here can make no answer of what stands around it.

    answer       = parts | derivation | statement | several | words | OPAQUE
    parts        = label value {[sep] label value}        two or more; compared label by label
    label        = "(" mark ")" | mark (")" | "." | ":")  mark: a-h, i-viii, 1-9, in turn
    several      = tuple | set | interval {"\cup" interval} | enumeration | alternatives | order
    tuple        = "(" statement {"," statement} ")"      compared in order, as is a list in square brackets
                 | column | row | expression "\hat{i}" {sign expression "\hat{j}"}     the same, of coordinates
    set          = "\{" statement {"," statement} "\}"    in any order
    enumeration  = statement {("," | ";" | "and") statement}   any order, unless the question asks for one
    alternatives = statement {("," | "or") statement}     any order; never a tuple
    order        = step {("\to" | "-") step}
    derivation   = chain {therefore chain}                every chain holds for the value of the last
    therefore    = "\to" | "\implies" | "so" | "then" | "thus" | "hence" | "therefore"
    statement    = chain | relation | value
    chain        = [name "="] expression {"=" expression} "=" value
    relation     = expression sign expression {sign expression}      sign: < > \le \ge \ne
    value        = expression [unit] ["\approx" decimal [unit]] | words
    expression   = ["+" | "-"] term {("+" | "-" | "\pm" | "\mp") term}
    term         = factor {["\cdot" | "\times" | "/" | "\div" | "\bmod"] factor}
    factor       = atom {"^" argument | "_" argument | "!" | "'" | "°" | "%"}
    atom         = number | letters | symbol | function [argument] factor | command argument {argument}
                 | "(" expression {"," expression} ")" | "|" expression "|" | "\begin{..matrix}" cells "\end{..matrix}"
    letters      = one letter, or up to three that touch what they are multiplied with; capitals name points
    name         = symbol, `f(2)`, `|AB|`, `\bar{x}`, `\frac{dy}{dx}`, `\cos A`, `\det`, `A\cap B`, `(x, y)`, a
                   described quantity such as `the total area`; `\sin x`, `x^2` and `\max` are none

The sides of a chain that hold no unknown are equal, or the whole is opaque. A side with unknowns is a step on the way
to the value of a named quantity (`A = bh = 6`) unless it names that quantity, or reads as a value beside another name
(`x = 2y = 3`): then a comma, a word or a sign was lost, and nobody can say which value is the answer. A name may also
be an expression with bound variables (`\lim_{x \to 0} ... = 1`, a determinant).
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

from mmcorl.answers.spellings import spellings

Node = tuple[Any, ...]
"""An operation and what it is applied to: trees, or the digits and names of leaves."""
UNKNOWN: Node = ("unknown",)
"""What the grammar derives and nobody can work out, or could mean two things: sums over a variable, `1/2x`."""

_NAMES = dict(spellings("symbols"))


def _commands(*kinds: str) -> frozenset[str]:
    return frozenset(rf"\{name}" for kind in kinds for name in _NAMES[kind])


GREEK = _commands("greek")
OPENING = {"(": ")", "[": "]", "{": "}", r"\{": r"\}"}
_CLOSING = frozenset(OPENING.values())
_PIECE = re.compile(r"\\[A-Za-z]+|\\.|[A-Za-z]+|<=|>=|.", re.DOTALL)
_TOKEN = re.compile(r"\\[A-Za-z]+|\\.|\d+\.\d*|\.\d+|\d+|[A-Za-z]+|\s+|.", re.DOTALL)
_MAX_TOKENS, _MAX_DEPTH = 1024, 48

THEREFORE = frozenset({r"\to", r"\implies", "so", "then", "thus", "hence", "therefore"})
FUNCTIONS = frozenset(_NAMES["function"])
_FUNCTIONS = _commands("function", "other function")
_BINDERS, _SYMBOLS, _DECORATIONS = map(_commands, ("binder", "sign", "decoration"))
_PAIRS = {"(": ")", "[": "]", "{": "}", r"\{": r"\}", r"\lfloor": r"\rfloor", r"\lceil": r"\rceil"}
_PAIRS |= {r"\langle": r"\rangle", r"\lvert": r"\rvert", r"\|": r"\|", "|": "|"}
_ENCLOSED = {"|": "|", r"\lvert": "|", r"\lfloor": "floor", r"\lceil": "ceil"}
_ADDS = frozenset({"+", "-", r"\pm", r"\mp"})
_TIMES = _commands("operator") | {"/"}
_ENDS_OPERAND = frozenset(")]}!'°%")
_MATRIX = frozenset({"matrix", "bmatrix", "pmatrix", "vmatrix", "Vmatrix", "array"})
# `f(x+1)`, `S(3)` and `y(x)` are values of functions: a product would be written `3S` and `xy`.
_APPLICATION = re.compile(
    r"(?:[fghFGHPQ]|\\(?:phi|varphi|Phi|psi|Psi|Gamma|zeta))(?:_\w+)?'*\("
    r"|(?:[A-Za-z]|\\[A-Za-z]+)(?:_\w+)?'*\( ?(?:-?[\d.]+|[A-Za-z]|\\[A-Za-z]+) ?\)"
)
_DIFFERENTIAL = re.compile(r"\{d(?:\^\d)?[A-Za-z]?\}\{d[A-Za-z](?:\^\d)?\}")


@lru_cache(maxsize=1 << 13)
def read(text: str) -> Node | None:
    """Return the tree of the one mathematical expression that the whole of a cleaned text is; None for other text."""
    tokens = _TOKEN.findall(text)
    if not text.strip() or len(tokens) > _MAX_TOKENS:
        return None
    try:
        return _Reader(tokens).whole()
    except _NoExpressionError:
        return None


def is_expression(text: str) -> bool:
    """Return whether the grammar derives one mathematical expression from the whole of a cleaned text."""
    return read(text) is not None


class _NoExpressionError(Exception):
    """The text is no mathematical expression."""


class _Tokens:
    """Tokens and how far they are read."""

    def __init__(self, tokens: list[str]) -> None:
        self._tokens, self._at, self._depth, self._bars = tokens, 0, 0, 0

    def _peek(self) -> str | None:
        while self._at < len(self._tokens) and self._tokens[self._at].isspace():
            self._at += 1
        return self._tokens[self._at] if self._at < len(self._tokens) else None

    def _take(self, tokens: frozenset[str] | tuple[str, ...]) -> str | None:
        token = self._peek()
        if token is None or token not in tokens:
            return None
        self._at += 1
        return token

    def _ahead(self, count: int) -> list[str]:
        return [token for token in self._tokens[self._at : self._at + count] if not token.isspace()]

    def _behind(self) -> str:
        return next((token for token in reversed(self._tokens[: self._at]) if not token.isspace()), "")

    def _skip_group(self, depth: int = 0) -> None:
        while self._at < len(self._tokens):
            token = self._tokens[self._at]
            self._at += 1
            depth += (token == "{") - (token == "}")
            if depth == 0:
                return
        raise _NoExpressionError

    def _environment(self) -> None:
        """Read a matrix; its cells are read where it is compared."""
        opening = self._tokens[self._at : self._at + 2]
        if len(opening) < 2 or opening[0] != "{" or opening[1] not in _MATRIX:
            raise _NoExpressionError
        depth = 1
        while self._at < len(self._tokens) and depth:
            token = self._tokens[self._at]
            self._at += 1
            depth += (token == r"\begin") - (token == r"\end")
        self._skip_group()


class _Reader(_Tokens):
    """Recursive descent over tokens; every method advances past what it read and returns its tree, or raises."""

    def whole(self) -> Node:
        node = self._expression()
        if self._peek() is not None:
            raise _NoExpressionError
        return node

    def _expression(self) -> Node:
        sign = self._take(_ADDS)
        # `--5` may be a dash.
        dash = sign is not None and self._peek() == "-"
        terms = [_signed(sign, self._term())]
        while (sign := self._take(_ADDS)) is not None:
            terms.append(_signed(sign, self._term()))
        return UNKNOWN if dash else terms[0] if len(terms) == 1 else ("+", *terms)

    def _term(self) -> Node:
        factors, divided = [self._signed_factor()], False
        while (token := self._peek()) is not None:
            if token in _TIMES:
                self._at += 1
                factor = self._signed_factor()
                if token in (r"\bmod", r"\mod"):
                    factors = [UNKNOWN if factors[0][0] == "mod" else ("mod", _product(factors), factor)]
                elif token in ("/", r"\div"):
                    divided = True
                    factors.append(("/", factor))
                else:
                    factors.append(factor if token in (r"\cdot", r"\times") else UNKNOWN)
            elif self._starts_atom(token) and not (token[-1].isdigit() and self._behind() in ("°", "%")):
                # `1/2x` is ambiguous, and so is the 2 of `x 2`; that of `(x)2` and `3!2` is a factor.
                clear = not divided and (not token[-1].isdigit() or self._behind() in ("!", "}", ")"))
                factor = self._factor()
                factors.append(factor if clear else UNKNOWN)
            else:
                break
        return _product(factors)

    def _signed_factor(self) -> Node:
        return ("-", self._factor()) if self._take(("-",)) else self._factor()

    def _starts_atom(self, token: str) -> bool:
        if token == "|":
            # Where a bar is open the next one closes it: bars do not nest without brackets.
            return not self._bars
        if token[0].isdigit() or token[-1].isdigit() or (token.isascii() and token.isalpha()):
            return True
        return token in _PAIRS or (token[0] == "\\" and token in _STARTS)

    def _factor(self) -> Node:
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise _NoExpressionError
        node, marks = self._atom(), 0
        while (token := self._take(("^", "_", "!", "'", "°", "%"))) is not None:
            marks += 1
            if token == "^":
                exponent = self._argument()
                # A second exponent has no base.
                node = UNKNOWN if self._peek() == "^" else ("^", node, exponent)
            elif token == "_":
                self._argument()
                node = UNKNOWN
            else:
                node = (token, node) if token in ("!", "°") and marks < 8 else UNKNOWN
        self._depth -= 1
        return node

    def _argument(self) -> Node:
        """Read a group, whatever it holds, or one token."""
        token = self._peek()
        if token is None or token in _ADDS or token in _TIMES or token in _CLOSING:
            raise _NoExpressionError
        if token.isalpha() and len(token) > 3:
            raise _NoExpressionError
        if token == "(":
            return self._enclosed("(")
        if token.isalpha():
            # What follows the first letter is a factor.
            self._tokens[self._at : self._at + 1] = token
            token = token[0]
        self._at += 1
        if token != "{":
            name = len(token) == 1 and token.isascii() and token.isalnum()
            return _leaf(token) if name or token == r"\pi" or token in GREEK else UNKNOWN
        start = self._at
        self._skip_group(1)
        inside = _Reader(self._tokens[start : self._at - 1])
        inside._depth = self._depth
        try:
            return inside.whole()
        except _NoExpressionError:
            return UNKNOWN

    def _atom(self) -> Node:
        token = self._peek()
        if token is None:
            raise _NoExpressionError
        before = self._tokens[max(0, self._at - 2) : self._at]
        spaced = len(before) > 1 and before[1].isspace() and (before[0][-1].isalnum() or before[0] in _ENDS_OPERAND)
        if token in _PAIRS:
            return self._enclosed(token)
        self._at += 1
        if token[0].isdigit() or token[-1].isdigit():
            return self._number(token)
        if token.isascii() and token.isalpha():
            return self._letters(token, spaced)
        if token == r"\pi" or token in GREEK:
            return self._symbol(token)
        if token in (r"\frac", r"\binom"):
            start = self._at
            above, below = self._argument(), self._argument()
            # A derivative is no quotient of products.
            if _DIFFERENTIAL.fullmatch("".join(self._tokens[start : self._at])):
                return UNKNOWN
            return ("binom", above, below) if token == r"\binom" else _product([above, ("/", below)])
        if token == r"\sqrt":
            degree = self._degree()
            return ("root", self._argument(), degree)
        if token in _DECORATIONS:
            return self._decorated(token)
        if token in _FUNCTIONS or token in _BINDERS:
            return self._function(token)
        if token == r"\begin":
            self._environment()
        elif token not in _SYMBOLS:
            raise _NoExpressionError
        return UNKNOWN

    def _number(self, token: str) -> Node:
        """Read a number with its period (`0.1\\overline{6}`) or, if it is mixed, its fraction (`7 \\frac{3}{4}`)."""
        following = self._tokens[self._at] if self._at < len(self._tokens) else ""
        if following in (r"\overline", r"\bar", r"\dot") and "." in token:
            self._at += 1
            digits = "".join(self._tokens[self._at : self._at + 3])[1:-1]
            self._argument()
            return ("repeating", token, digits) if digits.isdigit() and len(digits + token) < 64 else UNKNOWN
        ahead = self._ahead(12)
        if ahead[:2] == [r"\frac", "{"] and len(ahead) > 6 and (ahead[3:5], ahead[6]) == (["}", "{"], "}"):
            above, below = ahead[2], ahead[5]
            if above.isdigit() and below.isdigit():
                self._take((r"\frac",))
                return _mixed(token, above, below, self._argument(), self._argument())
        if ahead and ahead[0][-1].isdigit():
            # Two numbers in a row are none.
            if not (
                token.isdigit() and len(ahead) > 2 and ahead[0].isdigit() and ahead[1] == "/" and ahead[2].isdigit()
            ):
                raise _NoExpressionError
            for part in ahead[:3]:
                self._take((part,))
            return _mixed(token, ahead[0], ahead[2], _leaf(ahead[0]), _leaf(ahead[2]))
        return ("number", token)

    def _letters(self, token: str, spaced: bool) -> Node:
        """Read letters that are multiplied; refuse a run that is a word rather than a product or points."""
        if len(token) > 1 and not (token.isupper() and len(token) <= 6):
            space_behind = self._at < len(self._tokens) and self._tokens[self._at].isspace()
            following = self._peek()
            beside = spaced or (space_behind and following is not None and self._starts_atom(following))
            # In `2x dx` stands a differential.
            if len(token) > 3 or (beside and not (len(token) == 2 and token[0] == "d" and r"\int" in self._tokens)):
                raise _NoExpressionError
        if len(token) == 1:
            return self._symbol(token)
        # What follows belongs to the last letter.
        self._at -= 1
        self._tokens[self._at : self._at + 1] = token
        self._at += 1
        return self._symbol(token[0])

    def _symbol(self, name: str) -> Node:
        """Read a variable, or the value of a function of an unknown name; subscripts and primes are parts of names."""
        while (mark := self._take(("_", "'"))) is not None:
            start = self._at
            if mark == "_":
                self._argument()
            name += mark + "".join(self._tokens[start : self._at]).strip("{} ")
        ahead = "".join(self._tokens[self._at : self._at + 8]) if self._peek() == "(" else ""
        if ahead and name not in ("e", "i", r"\pi") and _APPLICATION.match(name + ahead):
            return ("apply", name, self._enclosed("("))
        return ("symbol", name)

    def _decorated(self, token: str) -> Node:
        start = self._at
        self._argument()
        name = "".join(self._tokens[start : self._at]).strip("{} ")
        if token not in (r"\overline", r"\bar", r"\tilde", r"\hat", r"\mathcal") or len(name) > 2:
            return UNKNOWN
        # A segment has no direction; \overline{12} is a number of digits.
        segment = token == r"\overline" and name.isalpha() and name.isupper()
        return ("symbol", f"{token} {''.join(sorted(name)) if segment else name}")

    def _degree(self) -> Node:
        if self._peek() != "[":
            return ("number", "2")
        node = self._enclosed("[")
        return node if node[0] == "number" and node[1] in set("2345678") else UNKNOWN

    def _function(self, name: str) -> Node:
        marks: dict[str, Node] = {}
        while (mark := self._take(("_", "^"))) is not None:
            marks[mark] = self._argument()
        if name in _BINDERS:
            self._signed_factor()
            return UNKNOWN
        if self._peek() in ("{", "("):
            argument = self._enclosed(str(self._peek()))
        else:
            # `\sin 5x` takes the 5x; a division or a bracket after that would be ambiguous.
            factors = [self._signed_factor()]
            while (token := self._peek()) is not None and (
                (token.isalpha() and token.isascii()) or token in GREEK or token == r"\pi"
            ):
                factors.append(self._factor())
            argument = _product(factors)
            if self._peek() in ("/", "(", r"\div", r"\frac", r"\sqrt"):
                argument = UNKNOWN
        if name == r"\log" and "_" in marks:
            node: Node = ("log", marks["_"], argument)
        else:
            node = UNKNOWN if "_" in marks else (name, argument)
        if "^" not in marks:
            return node
        inverse = marks["^"] == ("-", ("number", "1"))
        if inverse:
            return (rf"\arc{name[1:]}", argument) if name in (r"\sin", r"\cos", r"\tan") else UNKNOWN
        return ("^", node, marks["^"])

    def _enclosed(self, opening: str) -> Node:
        self._take((opening,))
        closing = _PAIRS[opening]
        bars, self._bars = self._bars, int(closing == "|")
        node = self._expression()
        while closing not in ("|", "}") and self._take((",",)):
            self._expression()
            node = UNKNOWN
        if closing in (")", "]"):
            if (bracket := self._take((")", "]"))) is None:
                raise _NoExpressionError
            node = node if bracket == closing else UNKNOWN
        elif self._take((closing,)) is None:
            raise _NoExpressionError
        self._bars = bars
        if opening in ("(", "[", "{"):
            return node
        return (_ENCLOSED[opening], node) if opening in _ENCLOSED else UNKNOWN


_STARTS = GREEK | _SYMBOLS | _FUNCTIONS | _BINDERS | _DECORATIONS
_STARTS |= {r"\pi", r"\frac", r"\binom", r"\sqrt", r"\begin"}


def _leaf(token: str) -> Node:
    return ("number" if token[-1].isdigit() else "symbol", token)


def _product(factors: list[Node]) -> Node:
    return factors[0] if len(factors) == 1 else ("*", *factors)


def _signed(sign: str | None, term: Node) -> Node:
    if sign in (r"\pm", r"\mp"):
        return UNKNOWN
    return ("-", term) if sign == "-" else term


def _mixed(whole: str, above: str, below: str, numerator: Node, denominator: Node) -> Node:
    clear = whole.isdigit() and len(above) < 9 and len(below) < 9 and 0 < int(above) < int(below)
    return ("+", ("number", whole), _product([numerator, ("/", denominator)])) if clear else UNKNOWN


# --- splitting ----------------------------------------------------------------------------------------------


def split_top_level(text: str, separators: frozenset[str]) -> list[str]:
    """Split `text` at separators outside brackets; the whole text when brackets do not balance."""
    if not any(separator in text for separator in separators):
        return [text]
    parts, depth, start, at = [], 0, 0, 0
    for match in _PIECE.finditer(text):
        piece, at = match.group(), match.start()
        if piece in OPENING or piece == r"\begin":
            depth += 1
        elif piece in _CLOSING or piece == r"\end":
            depth -= 1
        elif depth == 0 and piece in separators:
            parts.append(text[start:at])
            start = match.end()
    parts.append(text[start:])
    if len(parts) == 1:
        return parts
    # In `1, 2, and 3` the comma before `and` separates nothing.
    kept = [part for part in parts if part.strip()] if "," in separators else parts
    return kept or [text]


def bracketed(text: str) -> tuple[str, str] | None:
    """Return (brackets, content) when one pair encloses the whole text; the two may differ (`[6,8)`)."""
    for opening in (r"\{", "(", "["):
        if not text.startswith(opening):
            continue
        closing = next((mark for mark in (r"\}", ")", "]") if text.endswith(mark)), None)
        if closing is None or (opening == r"\{") != (closing == r"\}"):
            return None
        content = text[len(opening) : -len(closing)]
        depth = 0
        for match in _PIECE.finditer(content):
            depth += (match.group() in OPENING) - (match.group() in _CLOSING)
            if depth < 0:
                return None
        if depth:
            return None
        return f"{opening[-1]}{closing[-1]}", content
    return None


def without_round_brackets(text: str) -> str:
    """Drop parentheses around the whole of one value."""
    for _ in range(4):
        if not text.startswith("("):
            break
        inside = bracketed(text)
        if inside is None or inside[0] != "()" or len(split_top_level(inside[1], frozenset(",;"))) > 1:
            break
        inner = inside[1].strip()
        if not inner:
            break
        text = inner
    return text
