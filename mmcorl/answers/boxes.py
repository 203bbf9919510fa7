r"""Boxes in a response: the last one, read with the formula that it stands in.

formula  = what stands between `$`, `\[`, `\(`, `\\`, `&` or line ends around a box; in prose the signs and operands
           that touch it
answer   = the box, where nothing else stands behind the last `=` of its formula; else that formula without boxes
parallel = boxes of one sentence, or items of one list, that differ: all of them with what stands between, unless a
           step (`then`, `so`, `=`) leads from one to the next
no answer where words before the last box keep it from being stated, or words behind it take it back; see `assertion`
"""

from __future__ import annotations

import re
from itertools import pairwise

from mmcorl.answers.assertion import HEDGING, NEUTRAL
from mmcorl.answers.closed_classes import classes
from mmcorl.answers.grammar import THEREFORE
from mmcorl.answers.latex import clean
from mmcorl.answers.names import QUANTITY
from mmcorl.answers.retraction import is_retracted
from mmcorl.answers.tokens import classes_in, tokens_of
from mmcorl.answers.units import UNIT_WORDS, split_unit

Span = tuple[int, int]

# `boxed{` without its backslash is common in model text; the look-behind keeps `unboxed{` out. `\boxed 5` is TeX, too.
BOX = re.compile(r"(?:\\\\?(?:(?:begin)?boxed|fbox)|(?<![A-Za-z\\])boxed)[ \t\n\r]{0,8}\{")
_UNBRACED = re.compile(r"(\\(?:boxed|fbox))[ \t]{0,8}(\d+(?:\.\d+)?|[A-Za-z](?![A-Za-z]))(?![ \t]{0,8}\{)")
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)
_MARK = "\ue000"
_SPACE = r"(?:[\s$]|\\[,;:! ()\[\]]|\\q?quad(?![A-Za-z])|\\(?:left|right|displaystyle)(?![A-Za-z]))"
_BLANK = re.compile(rf"(?:{_SPACE}|\\){{0,16}}")
_EMPTY = re.compile(rf"(?:{_SPACE}|[*_.,;:]|\\\\){{0,32}}")
_EDGE = re.compile(
    r"\n[ \t]*\n|\n|\\\\(?:\[[^\]\n]{0,8}\])?|(?<!\\)\$\$?|\\[\[\]()]|(?<!\\)&"
    r"|\\(begin|end)[ ]?\{([a-zA-Z]{1,12})\*?\}(?:\{[lcr|]{1,16}\})?"
)
_OPENS, _CLOSES = {r"\[": r"\]", r"\(": r"\)", "$": "$", "$$": "$$"}, {r"\]", r"\)", "$", "$$"}
_EQUALS = re.compile(r"(?<![<>!:=])=(?![=>])|\\approx(?![A-Za-z])|≈")
# In prose: signs and operands that touch a box, and no word.
_PIECE = re.compile(r"\\[A-Za-z]+|\\.|\d[\d.,]*\d|\d|[A-Za-z]+|\s+|.", re.DOTALL)
_FORMULA_SIGNS = frozenset("+-*/^=<>|_()[]{}!%°±×÷·−–≤≥≠≈√'") | {_MARK}
_OPERATORS = frozenset("+-*/^=<>_([{±×÷·−–≤≥≠≈√") | {r"\{"}
_DASHES = frozenset("-–−—")
_NO_OPERATORS = frozenset({r"\text", r"\textbf", r"\mathrm", r"\quad", r"\qquad"})
_SPACES_ONLY = frozenset({r"\,", r"\;", r"\:", r"\!", r"\ "})
_MEASURE = (
    "[cmdk]?m|k?g|mg|mL|ft|kilomet(?:er|re)s?|centimet(?:er|re)s?|millimet(?:er|re)s?|met(?:er|re)s?|inch(?:es)?"
    "|feet|foot|yards?|miles?|(?:kilo|milli)?grams?|liters?|litres?|seconds?|minutes?|hours?|days?|weeks?|months?"
    "|years?|degrees?"
    "|radians?|cents?|dollars?|percent|hundred|thousand|million|billion|trillion|dozen"
)
_POWER_BEHIND = r"\s?\^\s?(?:\{\s?-?[1-4]\s?\}|[1-4])|²|³"
_UNIT_BEHIND = re.compile(
    r"(?:\s|\\[ ,;:]|~|\$(?=\s?\$?\\)){0,4}"
    rf"(?:\\(?:text|mathrm|textrm)\s?\{{(?:\s|\\[ ,])?(?:{_MEASURE})\s?\}}|(?:{_MEASURE})"
    rf"(?![A-Za-z'-]))(?:{_POWER_BEHIND})?(?: ?(?:/|per\b) ?(?:{_MEASURE}|s|sec|h|hr"
    rf"|min)(?![A-Za-z'-])(?:{_POWER_BEHIND})?)?"
    r"|\s?\\?%"
)
# `$\boxed{6}$/2`, `\boxed{6}.5`, `$\boxed{6}$ $\pi$`.
_OPERATION_BEHIND = re.compile(
    r"(?:\.\d{1,9}|/\s?\d{1,9}|\^\s?\{?-?\w{1,3}\}?|!(?=\s?[.,;])"
    r"|\s?\$?\s?\\(?:pi|pm|cdot|times|sqrt)(?![A-Za-z])[^$\n]{0,24})\$?"
)
_SIGN_BEFORE = re.compile(
    r"(?:(?<![A-Za-z\\])(?:minus|negative)|\\text\s?\{(?:minus|negative)\s?\}|\\pm|±)(?:[\s$]|\\[()]){0,4}\Z"
    r"|(?<![\w-])[-−–]\$?\Z"
)
# Between the boxes of one answer: `\boxed{1} \text{ and } \boxed{2}`, `x = \boxed{1}, y = \boxed{2}`.
_JOINT = re.compile(
    rf"{_SPACE}{{0,16}}(?:(?:,|;|&|\\text\s?\{{\s{{0,4}}(?:and|or)\s{{0,4}}\}}|and\b|or\b){_SPACE}{{0,16}}){{0,2}}"
    rf"(?:[A-Za-z](?:_\w|_\{{\w{{1,4}}\}})?{_SPACE}{{0,4}}={_SPACE}{{0,4}})?\\?"
)
_SENTENCE_END = re.compile(r"[.!?](?=[\s$*]|\\[\])]|\Z)|[。！？]|\n")
_WORDS_OF_STEPS = "|".join(sorted(word for word in THEREFORE if word.isalpha()))
_STEP = re.compile(
    r"\\(?:Rightarrow|implies|therefore|rightarrow|to)(?![A-Za-z])|[⇒→∴]"
    rf"|(?<![A-Za-z\\])(?:{_WORDS_OF_STEPS}|finally|final|now|answer|答案)(?![A-Za-z])",
    re.IGNORECASE,
)
_PARTS_SENTENCES = re.compile(rf"[.!?;。；,](?=\s)|\n|{_MARK}\S?")
_LEAD_WORD = re.compile(r"[^\W\d_]+|\d+|[<>≤≥=]|\\[lg]eq?(?![a-z])")
_COUNT = re.compile(
    r"\d{1,2}|[<>≤≥=]|\\[lg]eq?|[a-h]|[ivx]{1,4}|one|two|three|four|other|another|first|second|third|fourth|former"
    r"|latter|odd|even"
    r"|positive|negative|left|right|upper|lower"
)
_ITEM = re.compile(
    rf"[\s>|]*(?P<label>[-*•+]\s|[^\n{_MARK}]{{0,60}}?[:.)：|]\**)?(?:{_SPACE}|[*_])*(?:[A-Za-z] ?= ?)?{_MARK}"
    rf"(?:{_SPACE}|[*_.,;|])*"
)
_ITEM_MARK = re.compile(r"(?:[Pp]art )?\(?([a-z]|[ivx]{1,4}|[1-9])[.):]{1,2}")
_NAMES_ANSWER = re.compile(r"answer|final|result|total|答案|therefore|thus|hence|\bso\b", re.IGNORECASE)
_MAX_BOXES, _BESIDE, _WINDOW = 64, 200, 1000

# What stands around the box of an answer tag, or in a formula.
_MATHEMATICS = classes("mathematics")
_NAME = re.compile(r"(?:(?:[A-Za-z](?:_?\{?\w)?)? ?(?:[=≈]|\\approx)|[A-Za-z]|\\\\|\\)\s?")
_FACTOR = re.compile(r"[\w})\]]\Z")
_POWER = re.compile(r"\s{0,4}[\^!]")
_TEXT = re.compile(r"\\text(?:bf|rm)?\s?\{([^{}]{0,200})\}")
# `\boxed{5} pairs of socks`: words that count the answer; those that name a unit or a multiple belong to it.
_NOUNS = "|".join(sorted(map(re.escape, UNIT_WORDS), key=len, reverse=True))
_COUNTED = re.compile(
    rf"{_SPACE}{{0,16}}(?:({_NOUNS}|pairs?|sets?|roots|socks?|students)(?![A-Za-z]))?\.?"
    rf"(?:{_SPACE}{{1,4}}of{_SPACE}{{1,4}}[a-z]{{3,16}})?"
    rf"(?:{_SPACE}{{1,4}}(?:in all|in total|altogether|each|long|tall|wide|old|high))?[\s.$]{{0,16}}"
)


def braced(text: str) -> str:
    """Put braces around what `\\boxed 5` boxes."""
    return _UNBRACED.sub(r"\1{\2}", text) if "box" in text else text


def box_spans(text: str) -> tuple[list[Span], bool]:
    """Return the content spans of the balanced boxes, by start, and whether a box never closes."""
    first = max(0, text.find("box") - len(r"\\begin"))
    openings = {match.end() - 1 for match in BOX.finditer(text, first)}
    if not openings:
        return [], False
    spans: list[Span] = []
    stack: list[int] = []
    # Escaped braces are LaTeX characters, not groups: `\left\{ ... \right.` must not unbalance a box.
    for match in _BRACE.finditer(text, min(openings)):
        token = match.group()
        if token == "{":
            stack.append(match.start())
        elif token == "}" and stack:
            start = stack.pop()
            if start in openings:
                spans.append((start + 1, match.start()))
    return sorted(spans), any(start in openings for start in stack)


def boxed_answer(text: str, spans: list[Span]) -> str | None:
    """Return the answer that the boxes of a text give by the rules above; None where the last is taken back."""
    outermost = [spans[0]]
    for span in spans:
        if span[0] > outermost[-1][1]:
            outermost.append(span)
    outermost = outermost[-_MAX_BOXES:]
    start, end = outermost[-1]
    opening = _opening(text, outermost[-1], 0)
    before, behind = text[max(0, opening - _WINDOW) : opening], text[end + 1 : end + _WINDOW]
    if is_retracted(before, behind):
        return None
    alone = len(outermost) == 1 and before.endswith("$") and behind.startswith("$")
    if alone and not (
        _UNIT_BEHIND.match(behind, 1)
        or _OPERATION_BEHIND.match(behind, 1)
        or _SIGN_BEFORE.search(before, max(0, len(before) - 24), len(before) - 1)
    ):
        # By far the commonest case: one box, alone in its formula.
        return unwrap_boxes(text[start:end])
    contents = [text[start:end].replace(_MARK, " ") for start, end in outermost]
    pieces, position = [], max(0, _opening(text, outermost[0], 0) - _WINDOW)
    for start, end in outermost:
        pieces.append(text[position : _opening(text, (start, end), position)].replace(_MARK, " "))
        position = end + 1
    pieces.append(text[position : position + _WINDOW].replace(_MARK, " "))
    masked = _MARK.join(pieces)
    labels = _labels(masked, len(contents))
    listed = contents[-len(labels) :]
    if len(labels) > 1 and len({clean(content) for content in listed}) > 1:
        return ", ".join(f"{label} {unwrap_boxes(text)}".strip() for label, text in zip(labels, listed, strict=True))
    first, begin, end = _answer_span(masked, contents)
    answer = masked[begin : _closed(masked, begin, end)]
    marks, value = answer.count(_MARK), answer[_last_equals(answer) :]
    if marks == 1 and _MARK in value and _EMPTY.fullmatch(value.replace(_MARK, "")):
        return unwrap_boxes(contents[first])
    for content in contents[first : first + marks]:
        answer = answer.replace(_MARK, rf"\boxed{{{content}}}", 1)
    return unwrap_boxes(answer)


def _closed(masked: str, begin: int, end: int) -> int:
    """Return the end of a stretch of text moved behind the brackets that it opens."""
    for opening, closing in (("(", ")"), ("[", "]"), (r"\{", r"\}")):
        behind = len(masked[end:]) - len(masked[end:].lstrip(" ")) + end
        if masked.count(opening, begin, end) > masked.count(closing, begin, end) and masked.startswith(closing, behind):
            end = behind + len(closing)
    return end


def _answer_span(masked: str, contents: list[str]) -> tuple[int, int, int]:
    """Return the number of the first box of the answer, and where the answer begins and ends in the masked text."""
    positions = [match.start() for match in re.finditer(_MARK, masked)]
    begin, end = _formula(masked, positions[-1])
    first = len(positions) - 1
    while first and positions[first - 1] >= begin:
        first -= 1
    while first:
        before, (left, _) = positions[first - 1], _formula(masked, positions[first - 1])
        between = masked[before + 1 : positions[first]]
        if len(between) < _BESIDE and _are_parallel(masked, before, positions[first]):
            first -= 1
            begin = min(left, begin)
            continue
        joint = _JOINT.fullmatch(between)
        if not contents[-1].strip() or (
            joint is None and (_SENTENCE_END.search(between) or _STEP.search(between) or "=" in between)
        ):
            break
        if joint is None and len(between) > _BESIDE:
            break
        if clean(contents[first - 1]) == clean(contents[-1]) and joint is None:
            break
        first -= 1
        begin = min(left, begin)
    if (
        len({clean(content) for content in contents[first:]}) == 1
        and masked[begin:end].count(_MARK) > 1
        and (all(_JOINT.fullmatch(masked[a + 1 : b]) for a, b in pairwise(positions[first:])))
    ):
        # Said twice: no list.
        begin, end = _formula(masked, positions[-1])
        first = len(positions) - masked[begin:end].count(_MARK)
    return first, begin, end


def _are_parallel(masked: str, before: int, at: int) -> bool:
    """Return whether two boxes stand behind words that differ in a count alone: `Case one: ... Case two: ...`."""
    leads = []
    for end in (before, at):
        lead = masked[max(0, end - 80) : end]
        start = max((match.end() for match in _PARTS_SENTENCES.finditer(lead)), default=0)
        leads.append(_LEAD_WORD.findall(lead[start:].casefold()))
    pairs = list(zip(*leads, strict=False))
    unlike = [pair for pair in pairs if pair[0] != pair[1]]
    return len(leads[0]) == len(leads[1]) < 7 and len(unlike) == 1 and all(_COUNT.fullmatch(word) for word in unlike[0])


def _labels(masked: str, boxes: int) -> list[str]:
    """Return the labels of the items of one list that end with the last box; empty where it is no item."""
    labels: list[str] = []
    last = masked.rfind(_MARK)
    end = masked.find("\n", last)
    if boxes < 2:
        return labels
    for line in reversed(masked[: end if end >= 0 else len(masked)].split("\n")[-4 * _MAX_BOXES :]):
        item = _ITEM.fullmatch(line) if line.strip() else None
        if line.strip() and (item is None or not item["label"] or _NAMES_ANSWER.search(item["label"])):
            break
        if item is not None:
            label = item["label"].strip("-*•+ \t>|")
            mark = _ITEM_MARK.fullmatch(label)
            labels.append(f"({mark.group(1)})" if mark else label)
    return labels[::-1][-boxes:]


def _formula(masked: str, at: int) -> Span:
    """Return where the formula around a box begins and ends."""
    left, right, opening, closing = _enclosing(masked, at)
    # A unit, an operation or a sign may stand outside of the dollars, or touch them.
    if (unit := _UNIT_BEHIND.match(masked, closing) or _OPERATION_BEHIND.match(masked, closing)) is not None:
        right = unit.end()
    if (negative := _SIGN_BEFORE.search(masked, max(0, opening - 24), opening)) is not None:
        left = negative.start()
    return left, right


def _enclosing(masked: str, at: int) -> tuple[int, int, int, int]:
    """Return where the formula around a box begins and ends, without and with its delimiters."""
    begin, inside, matrix = 0, "", 0
    edges = list(_EDGE.finditer(masked, max(0, at - _WINDOW), at))
    for edge in edges:
        sign = edge.group()
        if edge.group(1):
            if "matrix" in edge.group(2) or edge.group(2) == "array":
                matrix += 1 if edge.group(1) == "begin" else -1
                continue
        elif matrix and (sign == "&" or sign.startswith("\\\\")):
            continue
        if inside and sign == inside:
            inside = ""
        elif sign in _OPENS and not inside:
            inside = _OPENS[sign]
        elif sign.count("\n") > 1 or (sign == "\n" and inside == "$"):
            inside = ""
        begin = edge.end()
    end = len(masked)
    for edge in _EDGE.finditer(masked, at):
        sign = edge.group()
        if matrix and not (sign in _CLOSES or sign.count("\n") > 1):
            continue
        if "\n" in sign and sign.count("\n") == 1 and inside in (r"\]", "$$"):
            continue
        end = edge.start()
        break
    if inside and (inside == masked[end : end + len(inside)] or masked[end : end + 1] in ("&", "\\")):
        return begin, end, begin - len(edges[-1].group()), end + len(inside)
    left, right = _touching(masked, begin, at, end)
    return left, right, left, right


def _touching(masked: str, begin: int, at: int, end: int) -> Span:
    """Return the stretch of signs and operands around a box in prose."""
    left, right = at, at + 1
    pieces = list(_PIECE.finditer(masked, max(begin, at - _BESIDE), at))
    operator: str | None = None
    for piece in reversed(pieces):
        token = piece.group()
        if not _is_formula_piece(token) or (token == ":" and not masked[piece.start() - 1 : piece.start()].isdigit()):
            break
        if token.isspace() or token in _SPACES_ONLY:
            continue
        spaced = piece.end() < len(masked) and masked[piece.end()].isspace()
        if operator is None:
            if token == ">" and (piece.start() == 0 or masked[piece.start() - 1] == "\n"):
                # A quotation in markdown.
                break
            if token in _DASHES and spaced and not _joins(masked, piece.start()):
                break
            if token.isdigit() or token[0].isdigit():
                # `2\boxed{3}` is a product where they touch.
                touches = piece.end() == at and _starts_word(masked, piece.start())
                if not touches and masked[piece.start() - 1 : piece.start()] not in ("_", "^"):
                    break
            elif token not in _OPERATORS and not (token[0] == "\\" and token[1:].isalpha()) and token != ":":
                break
            operator = token
        elif len(token) == 1 and token.isalpha() and spaced and not _is_operator_behind(masked, piece.end()):
            break
        left = piece.start()
    for piece in _PIECE.finditer(masked, at + 1, min(end, at + _BESIDE)):
        token = piece.group()
        if (
            token == ":"
            and masked[piece.end() : piece.end() + 1] not in ("", _MARK)
            and not masked[piece.end()].isdigit()
        ):
            break
        if not _is_formula_piece(token) or token in ("!", "|"):
            break
        if token.isspace() or token in _SPACES_ONLY:
            continue
        touches = piece.start() == right
        if right == at + 1 and not (
            token in _OPERATORS - _OPENING_ONLY or token in (":", "}") or token[:1] == "\\" or touches
        ):
            break
        if token in _DASHES and not touches and not _operand_behind(masked, piece.end()):
            break
        if token in (")", "]") and masked.count("(", left, piece.start()) + masked.count("[", left, piece.start()) < 1:
            break
        if len(token) == 1 and token.isalpha() and not touches and not _is_operator_before(masked, piece.start()):
            break
        right = piece.end()
    return left, right


_OPENING_ONLY = frozenset("([{√")


def _is_formula_piece(token: str) -> bool:
    if token[0] == "\\":
        return token not in _NO_OPERATORS
    return (
        token.isspace()
        or token in _FORMULA_SIGNS
        or token == ":"
        or token[0].isdigit()
        or (len(token) == 1 and token.isalpha() and token.isascii())
    )


def _joins(text: str, at: int) -> bool:
    """Return whether a dash at a place is a sign or subtracts, rather than parts words or opens an item."""
    return (
        _is_operator_before(text, at)
        or re.search(rf"(?:[\d)\]}}{_MARK}]|(?<![A-Za-z])[A-Za-z])\s*\Z", text[max(0, at - 8) : at]) is not None
    )


def _operand_behind(text: str, at: int) -> bool:
    return re.match(rf"\s*(?:[\d(\[{_MARK}\\]|[A-Za-z](?![A-Za-z]))", text[at : at + 8]) is not None


def _starts_word(text: str, at: int) -> bool:
    return not re.search(r"[\w-]\Z", text[max(0, at - 1) : at])


def _is_operator_behind(text: str, at: int) -> bool:
    following = text[at : at + 8].lstrip()
    return following[:1] in _OPERATORS or following[:1] == "\\"


def _is_operator_before(text: str, at: int) -> bool:
    before = text[max(0, at - 8) : at].rstrip()
    return before[-1:] in _OPERATORS


def _last_equals(text: str) -> int:
    """Return where what follows the last sign of equality begins; 0 without one."""
    return max((match.end() for match in _EQUALS.finditer(text)), default=0)


def _opening(text: str, box: Span, after: int) -> int:
    """Return where the command of a box starts."""
    return next(match.start() for match in BOX.finditer(text, max(after, box[0] - 24), box[0]) if match.end() == box[0])


def unwrap_boxes(content: str) -> str:
    """Replace boxes by their contents; a sentence that leads to the only box goes, mathematics around it stays."""
    spans, _ = box_spans(content) if "box" in content else ([], False)
    if not spans:
        return content
    innermost = [span for span, after in zip(spans, [*spans[1:], None], strict=True) if not _holds(span, after)]
    pieces: list[str] = []
    position, enclosing = 0, len(spans) - len(innermost)
    if 1 < len(innermost) <= _MAX_BOXES and len({content[start:end].strip() for start, end in innermost}) == 1:
        # Said twice: what stands between is no list.
        gaps = pairwise(innermost)
        if all(_BLANK.fullmatch(content, end + 1, _opening(content, box, end)) for (_, end), box in gaps):
            position, innermost = innermost[-2][1] + 1, innermost[-1:]
    for start, end in innermost:
        before, inner = content[position : _opening(content, (start, end), position)], content[start:end]
        before = _without_boxes(before) if enclosing else before
        separated = bool(pieces) and "\\\\" not in before and _BLANK.fullmatch(before) is not None
        pieces += [", " if separated else before, f"({inner})" if _FACTOR.search(before) else inner]
        position = end + 1
    behind = _without_boxes(content[position:]) if enclosing else content[position:]
    if len(innermost) == 1:
        pieces[0] = "" if _leads_to_it(_TEXT.sub(r"\1", pieces[0])) else pieces[0]
        behind = "" if _is_reason(behind) else _unit_of(behind)
        pieces[1] = f"({inner})" if _POWER.match(behind) else pieces[1]
    return "".join([*pieces, behind])


_LEADING = NEUTRAL | classes("linking comma colon opener yielding adverb")
_LONGEST_LEAD = 400
_BRACKETS = frozenset("|{}<>")
_NO_SENTENCE = HEDGING | classes("share part") | classes("wrong bound relative approximation arithmetic operation")
_QUANTITY = re.compile(QUANTITY, re.IGNORECASE)


def _leads_to_it(text: str) -> bool:
    """Return whether words only name a value or lead to it: `x =`, `The area is`, behind sentences without hedges."""
    if len(text) > _LONGEST_LEAD or not _BRACKETS.isdisjoint(text):
        return False
    tokens = tokens_of(_QUANTITY.sub("value", text))
    start = max((at + 1 for at, token in enumerate(tokens) if token.classes & classes("end")), default=0)
    if classes_in(tokens[:start]) & (_NO_SENTENCE | _MATHEMATICS):
        return False
    return all(
        token.classes & _LEADING or (token.classes & _MATHEMATICS and _NAME.fullmatch(token.text))
        for token in tokens[start:]
    )


def _is_reason(text: str) -> bool:
    """Return whether nothing follows a box, or a reason that hedges nothing."""
    tokens = tokens_of(text)
    start = next((token.start for token in tokens if token.classes & classes("reason")), len(text))
    blank = _EMPTY.fullmatch(text[:start]) is not None
    return blank and not (start < len(text) and classes_in(tokens) & HEDGING)


def _unit_of(behind: str) -> str:
    """Return the unit of words behind a box, none where they only say what is counted; other text stays."""
    counted = _COUNTED.fullmatch(behind)
    if counted is None or split_unit(f"1 {clean(behind)}")[1] is not None:
        return behind
    word = counted.group(1) or ""
    return f" {word}" if word in UNIT_WORDS else ""


def _without_boxes(text: str) -> str:
    """Drop the ends of boxes around a box."""
    text = BOX.sub("", text)
    return text.replace("}", "", max(0, text.count("}") - text.count("{")))


def _holds(outer: tuple[int, int], inner: tuple[int, int] | None) -> bool:
    return inner is not None and inner[0] < outer[1]
