r"""Answers that a response states in sentences, where it has neither answer tags nor a box: a reading on request.

    response    = {sentence} statement [explanation] [courtesy]     thoughts dropped; nothing where it was cut off
    statement   = label value | [lead] announcement value | choice | bold | bare
    label       = [article] {qualifier} noun ":"          `**Final Answer:**`, `答案：`; the value may be the next line
    announcement = [article] {qualifier} noun is          `the correct option is`, `die Antwort lautet`, `答案是`
    lead        = {connective | clause ","}               `So`, `Therefore,`, `Based on the chart,`, without doubt
    bold        = the last line, whose only emphasis is the value: alone, or behind words without doubt that end on
                  `is`, `=`, `:` or the like
    choice      = "I choose" option | "####" number
    bare        = the whole response, where it is an option or a number with its unit; its last line, where it is a
                  letter and options are known
    value       = an option by letter, text or both, where options are known; else what the grammar of answers reads
                  (`mmcorl.answers.grammar`), if no verb and no word of doubt stands in it
    courtesy    = `I hope this helps!`, `Let me know if ...`
    explanation = because ... | "Explanation:" ...        all options that it names are the value, or its last number is

The last statement counts. There is none where an earlier one differs, unless words stand between them and the later one
is labelled or announced, too; where a sentence behind it is no explanation (`Wait, no.`); and where another question
follows. Nouns, qualifiers, connectives and words of doubt are those of `closed_classes`; what is in no rule above is no
answer.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from mmcorl.answers.assertion import HEDGING
from mmcorl.answers.closed_classes import classes
from mmcorl.answers.tokens import Token, classes_in, tokens_of

LONGEST_VALUE = 200
_UNREAD = "\0"
"""What is announced as the answer and is no value."""
_READ = 1 << 15
"""Characters of a response's end that are read."""
_ANSWER, _OPTION, _RIGHT = classes("answer"), classes("option"), classes("right")
_COPULA, _COLON, _CONSEQUENCE = classes("copula particle"), classes("colon"), classes("consequence")
_MARK, _ARTICLE = classes("comma colon semicolon opening closing end"), classes("determiner speaker")
_CLAUSE = classes("basis according reason cause relative in")
_DOUBT = HEDGING | classes(
    "obligation rejection wrong wrongly error slip lapse saying example supposition quote interjection"
)
_MATHEMATICS = classes("mathematics")
_VERB = classes("copula auxiliary having yielding")
_BOLD = re.compile(r"\*\*(?P<bold>[^*\n]{1,200})\*\*|__(?P<under>[^_\n]{1,200})__")
# A period behind a lone letter is an option's mark.
_SENTENCE = re.compile(
    r"(?<![\s(*:：][A-H])(?<!\bans)[.!?](?=[\s*\"”)]|\Z)[*)]{0,3}|[。！？]\**|\n"
    r"|\.(?=\s(?:so|thus|therefore|hence|(?:the )?(?:final |correct )?answer)\b)",
    re.IGNORECASE,
)
_LETTER = re.compile(r"[(（\[]?\s?([A-H])\s?(?:[)）\]][.:]?|[.:、])?(?:\s+(?P<rest>.+))?", re.DOTALL)
_LETTERS = re.compile(r"(?<![A-Za-z\\'])([B-H]|A(?! [a-z]))(?![A-Za-z'])")
_NUMBER = re.compile(r"(?<![\w.])-?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?![\w])")
_BARE_NUMBER = re.compile(
    r"[-−+]?[$€£¥]?\s?(?:\d{1,3}(?:,\d{3})+|\d{1,15})(?:\.\d{1,15})?(?:/\d{1,9})?\s?[^\W\d_°%²³/^]{0,12}[°%²³]?"
)
_FACTORIAL = re.compile(r"\d!\Z")
_WORD = re.compile(r"[\w.%°-]+")
_MARKED = re.compile(r"(?:\A|\s)\w*\d(!(?=[*_]{0,3}[.,;])|(?<![\"'“]\d)['\"])[*_.,;]*\Z")
_ENDING = re.compile(r"\s*(?:です|である|だ|입니다|이다|이에요)\s*\Z")
_BEFORE = " \t\r\n*_`:：\"'“”"
_AROUND = _BEFORE + ".,;!。，；！"


@dataclass(frozen=True)
class _Statement:
    answer: str
    sentence: int
    """The sentence that it ends."""
    explanation: str
    """What follows the value in its sentence."""
    declared: bool
    """Labelled or announced, not only bold or bare."""


def prose_answer(text: str, choices: Sequence[str] | None = None) -> str | None:
    """Return the answer that a text, without thoughts and special tokens, states by the grammar above; None for none.

    `choices`: the values of the options, in order; linear in the length of the text.
    """
    text = text[-_READ:].strip()
    sentences = list(_sentences(text))
    while sentences and _opens(sentences[-1], "courtesy"):
        text = text[: text.rindex(sentences.pop())].strip()
    options = tuple(_plain(choice) for choice in choices or ())
    statements = list(_stated(sentences, options))
    if not statements or statements[-1].sentence < len(sentences) - 1:
        statements += _final(text, sentences, options)
    if not statements or (last := statements[-1]).answer == _UNREAD:
        return None
    behind = sentences[last.sentence + 1 :]
    first = statements[0].sentence
    if any(_opens(sentence, "asking") and ":" in sentence for sentence in sentences[first + 1 :]):
        return None
    for earlier in statements[:-1]:
        apart = (
            last.declared and earlier.declared and (last.sentence - earlier.sentence > 1 or earlier.answer == _UNREAD)
        )
        if _key(earlier.answer, options) != _key(last.answer, options) and not apart:
            return None
    explanation = " ".join([last.explanation, *behind]).strip()
    # Behind `Answer: B` alone on its line explanations need not name the option again.
    alone = last.declared and _option(last.answer, options) and f"\n{behind[0]}" in text if behind else False
    if behind and not (last.explanation or alone or _opens(behind[0], "explanation reason cause")):
        return None
    return last.answer if not explanation or _agrees(explanation, last.answer, options, alone) else None


def _sentences(text: str) -> Iterator[str]:
    """Yield the sentences of a text without blank ones; each with its end."""
    start = 0
    for match in _SENTENCE.finditer(text):
        if (sentence := text[start : match.end()].strip()) and sentence.strip(_AROUND + "-—|"):
            yield sentence
        start = match.end()
    if text[start:].strip(_AROUND + "-—|"):
        yield text[start:].strip()


def _opens(sentence: str, names: str) -> bool:
    """Return whether a sentence begins with a word of some classes, marks and a pronoun aside."""
    passed = _MARK | classes("speaker mathematics pronoun copula")
    first = next(
        (token for token in tokens_of(sentence[:200]) if not token.classes & passed or token.classes & classes(names)),
        None,
    )
    return first is not None and bool(first.classes & classes(names))


def _announced(text: str) -> tuple[int, bool] | None:
    """Return where what a sentence announces as the answer begins, and whether the sentence names it alone."""
    tokens = [token for token in tokens_of(text[:400]) if token.text not in "-•>"]
    at = next((k for k, token in enumerate(tokens) if token.classes & (_ANSWER | _OPTION)), None)
    if at is None:
        return _chosen(tokens)
    start, end = at, at + 1
    while start and tokens[start - 1].classes & (_RIGHT | _ARTICLE | classes("of")):
        start -= 1
    while end < len(tokens) and tokens[end].classes & (_ANSWER | _OPTION | _RIGHT | classes("outcome")):
        end += 1
    if end + 2 < len(tokens) and tokens[end].classes & classes("of") and tokens[end + 2].classes & classes("asking"):
        # `the answer to the question`
        end += 3
    noun, lead, behind = tokens[start:end], tokens[:start], tokens[end:]
    if noun[0].classes & classes("indefinite") and noun[-1].text.startswith("answer"):
        return None
    if not classes_in(noun) & _ANSWER and not (classes_in(noun) & _RIGHT or not text.isascii()):
        return _chosen(tokens)
    inverted = bool(lead) and bool(lead[-1].classes & classes("copula"))
    if not _is_lead(lead[:-1] if inverted else lead):
        return None
    if not behind or all(token.classes & (_COLON | classes("end")) for token in behind):
        return (len(text), not lead)
    if inverted:
        return behind[0].start, False
    if behind[0].classes & (_COPULA | _COLON) and behind[0].text != "for":
        while len(behind) > 1 and behind[1].classes & (_COLON | _CONSEQUENCE | classes("adverb")):
            behind = behind[1:]
        return behind[0].end, False
    if noun[-1].classes & _COPULA or noun[-1].text == "答案选":
        return noun[-1].end, False
    return _chosen(tokens)


def _chosen(tokens: Sequence[Token]) -> tuple[int, bool] | None:
    """Return where the option begins behind `故选`, `I choose`."""
    for at, token in enumerate(tokens):
        spoken = token.classes & classes("choosing") and at and tokens[at - 1].classes & classes("speaker")
        if (token.classes & classes("chosen") or spoken) and _is_lead(tokens[: at - 1 if spoken else at]):
            while at + 1 < len(tokens) and tokens[at + 1].classes & (_COLON | _OPTION | _ARTICLE):
                at += 1
            following = classes_in(tokens[at + 1 : at + 2])
            return (tokens[at].end, False) if not spoken or following & (_MATHEMATICS | _MARK) else None
    return None


def _is_lead(lead: Sequence[Token]) -> bool:
    """Return whether words before an announcement only connect it: `So`, `Based on the chart,`, `因为...，所以`."""
    while lead and lead[0].classes & (_CONSEQUENCE | _MARK | classes("opener linking")):
        lead = lead[1:]
    while lead and lead[-1].classes & (_CONSEQUENCE | classes("linking")):
        lead = lead[:-1]
    if all(token.classes & _MATHEMATICS for token in lead):
        return True
    is_clause = lead[0].classes & _CLAUSE and lead[-1].classes & classes("comma")
    return bool(is_clause) and not classes_in(lead[:-1]) & (
        classes("comma semicolon end tentative source name") | _DOUBT
    )


def _stated(sentences: Sequence[str], options: tuple[str, ...]) -> Iterator[_Statement]:
    """Yield the labelled and announced statements, in order."""
    for number, sentence in enumerate(sentences):
        plain = _without_bold(sentence)
        if (announced := _announced(plain)) is None:
            continue
        value, heading, at = plain[announced[0] :], announced[1], number
        if not value.strip(_AROUND):
            at = number + 1
            value = _without_bold(sentences[at]) if at < len(sentences) else ""
        if value.strip(_AROUND) and not value.rstrip("* ").endswith(("?", "？")):
            answer, explanation = _value(value, options)
            # What is announced and no value is a statement, too: it differs from any other.
            if answer or not heading:
                yield _Statement(answer or _UNREAD, at, explanation, True)


def _without_bold(sentence: str) -> str:
    return _BOLD.sub(lambda match: match["bold"] or match["under"], sentence)


def _final(text: str, sentences: Sequence[str], options: tuple[str, ...]) -> Iterator[_Statement]:
    """Yield the last line where it is bold or bare."""
    line = text.rpartition("\n")[2].strip()
    heading = _announced(line)
    if not sentences or (heading is not None and heading[0] == len(line)):
        return
    # Options line by line are a menu.
    listed = len(sentences) > 1 and _LETTER.fullmatch(sentences[-2].strip(_AROUND + "-•>|")) is not None
    bold = list(_BOLD.finditer(line))
    end = len(sentences) - 1
    if len(bold) == 1 and not line[bold[0].end() :].strip(_AROUND):
        lead, content = line[: bold[0].start()], bold[0]["bold"] or bold[0]["under"]
        stated = (not lead.strip(_AROUND + "#>-") and not listed) or (_leads(lead) and not _doubts(lead))
        if (
            stated
            and (answer := _value(content, options))
            and answer[0]
            and not answer[1]
            and not content.endswith(":")
        ):
            yield _Statement(answer[0], end, "", False)
        return
    bare = _trimmed(line.removeprefix("####"))
    letter = _LETTER.fullmatch(bare)
    letter_only = letter is not None and not letter["rest"] and not listed
    small = text == line and re.fullmatch(r"\(?[a-h]\)?", bare) is not None
    whole = (
        (text == line or line.startswith("####"))
        and (_option(bare, options) or _BARE_NUMBER.fullmatch(bare) is not None)
        and not _FACTORIAL.search(line)
    )
    if whole or (options and (letter_only or small)):
        yield _Statement(bare, end, "", False)


def _leads(lead: str) -> bool:
    """Return whether words before a bold value end on a verb, a noun or a sign that leads to it."""
    tokens = tokens_of(lead)
    return bool(tokens) and bool(tokens[-1].classes & (_COPULA | _COLON | _ANSWER | _OPTION | classes("equals")))


def _doubts(text: str) -> bool:
    return classes_in(tokens_of(text)) & _DOUBT != 0


def _value(text: str, options: tuple[str, ...]) -> tuple[str | None, str]:
    """Return the value at the start of a text and the explanation behind it; None for no value."""
    text = _ENDING.sub("", _trimmed(text))
    if text and _option(text, options):
        return text, ""
    because = next(
        (token.start for token in tokens_of(text[: 2 * LONGEST_VALUE]) if token.classes & classes("reason cause")), None
    )
    value, explanation = text, ""
    if because is not None:
        value, explanation = _trimmed(text[:because].rstrip(" ,，;；(")), text[because:]
    if not value or len(value) > LONGEST_VALUE or "\n" in value:
        return None, explanation
    if _option(value, options):
        return value, explanation
    if len(value.split()) > 1 and (_doubts(value.replace(" or ", " ")) or classes_in(tokens_of(value)) & _VERB):
        return None, explanation
    return value, explanation


def _option(text: str, options: tuple[str, ...]) -> bool:
    """Return whether a text is an option by its letter, its text or both."""
    return _key(text, options).startswith("option ") if options else False


def _key(text: str, options: tuple[str, ...]) -> str:
    """Return what a value says, for comparing statements: `option B`, or the value without its decoration."""
    text = text.strip(_AROUND)
    text = re.sub(r"\A(?:option|choice|选项|选择|选)\s?", "", text, flags=re.IGNORECASE)
    letter = _LETTER.fullmatch(text) if options else None
    if letter is not None and ord(letter[1]) - ord("A") < len(options):
        rest = _plain(letter["rest"] or "")
        if not rest or rest == options[ord(letter[1]) - ord("A")]:
            return f"option {letter[1]}"
    plain = _plain(text)
    if plain in options and options.count(plain) == 1:
        return f"option {chr(ord('A') + options.index(plain))}"
    return plain


def _trimmed(text: str) -> str:
    """Return a value without emphasis and the punctuation behind it; before it `!12` and `.5` say something.

    So do a factorial that ends no sentence itself, `5!.`, and a prime without an opening quote, `6'`.
    """
    end = _MARKED.search(text)
    return (text[: end.end(1)] if end is not None else text.rstrip(_AROUND)).lstrip(_BEFORE)


def _plain(text: str) -> str:
    """Return a text without decoration, for comparing it with the texts of options."""
    return " ".join(re.sub(r"[$*`\\{}]|\\text", " ", text.casefold()).split()).strip(" .,;:()")


def _agrees(explanation: str, answer: str, options: tuple[str, ...], alone: bool) -> bool:
    """Return whether an explanation says the answer again, no other one, and nothing of doubt.

    `alone`: it need not say it again.
    """
    if _doubts(explanation):
        return False
    key = _key(answer, options)
    if key.startswith("option "):
        words = " ".join(word.strip(".") for word in _WORD.findall(explanation.casefold()))
        named = {f"option {letter}" for letter in _LETTERS.findall(explanation)}
        named |= {
            f"option {chr(ord('A') + index)}"
            for index, option in enumerate(options)
            if len(option) > 1 and f" {option} " in f" {words} "
        }
        return named == {key} or (alone and not named)
    numbers = _NUMBER.findall(explanation)
    values = _NUMBER.findall(answer)
    return (
        len(values) == 1 and bool(numbers) and float(numbers[-1].replace(",", "")) == float(values[0].replace(",", ""))
    )
