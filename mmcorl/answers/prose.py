r"""Answers that a response states in sentences, where it has neither answer tags nor a box: a reading on request.

    response    = {sentence} statement [explanation] [courtesy]     thoughts dropped; nothing where it was cut off
    statement   = label value | [lead] announcement value | bold | bare
    label       = [article] {qualifier} noun ":"          `**Final Answer:**`, `答案：`; the value may be the next line
    announcement = [article] {qualifier} noun is          `the correct option is`, `die Antwort lautet`, `答案是`
    lead        = {connective | clause ","}               `So`, `Therefore,`, `Based on the chart,`, without doubt
    bold        = the last line, whose only emphasis is the value: alone, or behind words without doubt that end on
                  `is`, `=`, `:` or the like
    bare        = the whole response, where it is an option or a number with its unit; its last line, where it is a
                  letter and options are known
    value       = an option by letter, text or both, where options are known; else what the grammar of answers reads
                  (`mmcorl.answers.grammar`), if no verb and no word of doubt stands in it
    courtesy    = `I hope this helps!`, `Let me know if ...`
    explanation = because ... | "Explanation:" ...        all options that it names are the value, or its last number is

The last statement counts. There is none where an earlier one differs, unless words stand between them and the later one
is labelled or announced, too; where a sentence behind it is no explanation (`Wait, no.`); and where another question
follows. Nouns, qualifiers, connectives and words of doubt are closed classes of the languages below; what
is in no rule above is no answer.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

LONGEST_VALUE = 200
_UNREAD = "\0"
"""What is announced as the answer and is no value."""
_READ = 1 << 15
"""Characters of a response's end that are read."""
# Nouns with what qualifies them, and what says `is`.
_SPACED = {
    "English": (
        r"(?:the |my |our )?(?:(?:final|correct|right|best|short) ){0,2}answers?(?: (?:choice|option))?"
        r"(?: to (?:the|this|your) (?:question|problem))?"
        r"|(?:the )?(?:(?:final|correct|right|best) )?(?:option|choice) letter"
        r"|(?:the )?(?:final|correct|right|best) (?:option|choice|letter)|ans\.?",
        "is",
    ),
    "German": (r"(?:die |meine )?(?:(?:richtige|endgültige|korrekte|finale) )?antwort", "ist|lautet"),
    "Dutch": (r"(?:het )?(?:(?:juiste|correcte) )?antwoord", "is"),
    "Nordic": (r"(?:det )?(?:(?:rätta|riktige|rigtige) )?svar(?:et)?|vastaus", "är|er|on"),
    "French": (r"(?:la )?(?:bonne )?réponse(?: (?:finale|correcte))?", "est"),
    "Spanish": (r"(?:la )?respuesta(?: (?:final|correcta))?", "es"),
    "Portuguese": (r"(?:a )?resposta(?: (?:final|correta))?", "é"),
    "Italian": (r"(?:la )?risposta(?: (?:finale|corretta|esatta))?", "è"),
    "Romanian": (r"răspuns(?:ul)?(?: (?:final|corect))?", "este"),
    "Slavic": (
        r"(?:(?:правильный|окончательный) )?ответ|(?:правильна )?відповідь|(?:poprawna |prawidłowa )?odpowiedź"
        r"|(?:správná )?odpověď",
        "to|je|—|–",
    ),
    "Turkish": (r"(?:doğru )?(?:cevap|yanıt)", ""),
    "Malay": (r"jawaban(?:nya)?", "adalah"),
    "Vietnamese": (r"đáp án(?: đúng)?", "là"),
    "Greek": (r"(?:η )?(?:σωστή )?απάντηση", "είναι"),
}
_UNSPACED = {
    "Chinese": (r"(?:(?:这|本|此)道?题的?)?(?:最终|正确|最后)?的?(?:答案|选项)", "是|为|應為|应为"),
    "Japanese": (r"(?:最終的な)?(?:答え|解答|正解|回答)", "は"),
    "Korean": (r"(?:최종 )?(?:정답|답)", "은|는"),
    "Arabic and Hebrew": (r"(?:الإجابة|الجواب)(?: (?:النهائية|الصحيحة))?|ה?תשובה", "هي|هو|היא"),
    "Hindi": (r"(?:सही )?उत्तर", ""),
}
_NOUN = "|".join(noun for noun, _ in (*_SPACED.values(), *_UNSPACED.values()))
_ANNOUNCED = "|".join(
    [rf"(?:{noun}) (?:{verb})(?![^\W\d_])" for noun, verb in _SPACED.values() if verb]
    + [rf"(?:{noun})\s?(?:{verb})" for noun, verb in _UNSPACED.values() if verb]
    # Behind `daher`, `dus`, `därför` the verb comes first.
    + [rf"(?:{verb}) (?:{noun})(?![^\W\d_])" for noun, verb in map(_SPACED.__getitem__, ("German", "Dutch", "Nordic"))]
)
_CONNECTIVES = (
    r"so|thus|therefore|hence|then|and|finally|consequently|in conclusion|in summary|as a result|(?:this|that) means"
    r"(?: that)?|we conclude(?: that)?|it follows that|also|daher|somit|folglich|deshalb|dus|daarom|donc|alors|ainsi"
    r"|par conséquent|por lo tanto|por tanto|entonces|así que|logo|portanto|assim|quindi|dunque|pertanto|perciò|deci"
    r"|следовательно|значит|таким образом|итак|отже|zatem|więc|tedy|takže|buna göre|dolayısıyla|jadi|vậy|άρα"
    r"|따라서|그러므로|لذلك|לכן|इसलिए"
)
_UNSPACED_CONNECTIVES = r"因此|所以|故|综上(?:所述)?|于是|よって|したがって"
_CLAUSE = (
    r"(?:(?:based on|according to|from|by|in|after|looking at|using|given) (?:the|this|these|that|our|my|\w+ing)"
    r"|since|because)\b[^,.;!?]{1,160}"
)
_UNSPACED_CLAUSE = r"(?:因为|由于|根据)[^，。！？]{1,80}，"
_LEAD = (
    rf"(?:(?:(?:{_CONNECTIVES})(?![^\W\d_])|{_UNSPACED_CONNECTIVES})\s?[,，、:：]?\s?)?(?:{_CLAUSE},\s|{_UNSPACED_CLAUSE})?"
    rf"(?:(?:{_CONNECTIVES})(?![^\W\d_])\s?,?\s|{_UNSPACED_CONNECTIVES})?"
)
_MARKS = r"[\s>#*_•`\-–—]*"
_LABEL = re.compile(rf"{_MARKS}(?:{_LEAD})(?:{_NOUN}) ?[:：]\s*(?P<value>.*)", re.IGNORECASE | re.DOTALL)
_HEADING = re.compile(rf"\s*(?:#+\s*)?\**(?:{_NOUN})\**:?\**\s*", re.IGNORECASE)
_ANNOUNCEMENT = re.compile(
    rf"{_MARKS}(?P<lead>{_LEAD})(?:{_ANNOUNCED})\s?[:：]?\s*(?P<value>.*)", re.IGNORECASE | re.DOTALL
)
_CHOSEN = re.compile(rf"{_MARKS}(?:{_LEAD})(?:故选|所以选|应选|故答案选)[:：]?\s*(?P<value>.*)", re.DOTALL)
_BOLD = re.compile(r"\*\*(?P<bold>[^*\n]{1,200})\*\*|__(?P<under>[^_\n]{1,200})__")
_COPULA = re.compile(
    r"(?:[=:≈：]|\b(?:is|are|equals|be|option|choice|answer|ist|lautet|beträgt|est|es|é|è|равен|равна|равно|составляет)"
    r"|是|为|等于|は|은|는)\s*\Z",
    re.IGNORECASE,
)
_DOUBT = re.compile(
    r"\b(?:not|never|neither|nor|either|or|maybe|perhaps|possibly|probably|likely|might|may|could|would|should|unless|if"
    r"|unlikely|reject\w*|exclud\w*|discard\w*|eliminat\w*|ruled|extraneous|unsure|uncertain|sure|guess|assum\w+|suppos\w+|wrong|incorrect|false|mistake\w*|errors?|actually|wait|however|but"
    r"|instead|alternatively|cannot|no|idea|know|think\w*|thought|believe\w*|heard|some(?:one)?|student|said|says|claim\w*|example|vielleicht|möglicherweise"
    r"|wahrscheinlich|vermutlich|nicht|falsch\w*|wenn|peut-être|probablement|pas|faux|fausse|si|quizás?|tal vez"
    r"|probablemente|talvez|provavelmente|não|forse|probabilmente|non|errato|se|возможно|наверное|вероятно|не|неверно"
    r"|если|misschien|niet)\b|n't\b|[?？\"“”«»„]|可能|也许|或|大概|不|错|如果|かもしれ|多分|おそらく|違|もし|아마|아니|만약",
    re.IGNORECASE,
)
_VERB = re.compile(
    r"\b(?:is|are|was|were|has|have|gives?|would|should|can|will|does|do|ist|sind|est|sont|es|son|é|è|sono)\b|是",
    re.IGNORECASE,
)
_BECAUSE = re.compile(
    r"[,;.。，；(]?\s*\b(?:because|since|as|given that|weil|denn|parce que|puisque|car|porque|ya que|pois|perché|poiché"
    r"|потому что|так как|omdat)\b|[，。,]?\s*(?:因为|由于)",
    re.IGNORECASE,
)
_EXPLANATION = re.compile(
    rf"{_MARKS}(?:explanation|reason(?:ing)?|rationale|justification|(?:this is )?because|begründung|erklärung"
    r"|explication|explicación|explicação|spiegazione|объяснение|пояснение|解释|解析|理由|説明|설명)\**\s*[:：]?",
    re.IGNORECASE,
)
_COURTESY = re.compile(
    rf"{_MARKS}(?:(?:i )?hope (?:this|that|it) (?:helps|is helpful)|(?:please )?(?:let me know|feel free)"
    r"|(?:do|if) you have (?:any )?(?:other|more|further|questions)).*",
    re.IGNORECASE | re.DOTALL,
)
_QUESTION = re.compile(rf"{_MARKS}(?:question|problem|q|问题|题目|frage|pregunta|вопрос)\s?\d*\s?[:：]", re.IGNORECASE)
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
    while sentences and _COURTESY.fullmatch(sentences[-1]):
        text = text[: text.rindex(sentences.pop())].strip()
    options = tuple(_plain(choice) for choice in choices or ())
    statements = list(_stated(sentences, options))
    if not statements or statements[-1].sentence < len(sentences) - 1:
        statements += _final(text, sentences, options)
    if not statements or (last := statements[-1]).answer == _UNREAD:
        return None
    behind = sentences[last.sentence + 1 :]
    first = statements[0].sentence
    if any(_QUESTION.match(sentence) for sentence in sentences[first + 1 :]):
        return None
    for earlier in statements[:-1]:
        apart = (
            last.declared and earlier.declared and (last.sentence - earlier.sentence > 1 or earlier.answer == _UNREAD)
        )
        if _key(earlier.answer, options) != _key(last.answer, options) and not apart:
            return None
    explanation = " ".join([last.explanation, *behind]).strip()
    if behind and not last.explanation and not _EXPLANATION.match(behind[0]):
        return None
    return last.answer if not explanation or _agrees(explanation, last.answer, options) else None


def _sentences(text: str) -> Iterator[str]:
    """Yield the sentences of a text without blank ones; each with its end."""
    start = 0
    for match in _SENTENCE.finditer(text):
        if (sentence := text[start : match.end()].strip()) and sentence.strip(_AROUND + "-—|"):
            yield sentence
        start = match.end()
    if text[start:].strip(_AROUND + "-—|"):
        yield text[start:].strip()


def _stated(sentences: Sequence[str], options: tuple[str, ...]) -> Iterator[_Statement]:
    """Yield the labelled and announced statements, in order."""
    for number, sentence in enumerate(sentences):
        plain = _BOLD.sub(lambda match: match["bold"] or match["under"], sentence)
        match = _LABEL.match(plain) or _ANNOUNCEMENT.match(plain) or _CHOSEN.match(plain)
        heading = _HEADING.fullmatch(sentence)
        if match is not None and _DOUBT.search(match.groupdict().get("lead") or ""):
            continue
        value, at = ("", number) if match is None or heading else (match["value"], number)
        if heading or (match is not None and not value.strip(_AROUND)):
            at = number + 1
            value = (
                _BOLD.sub(lambda match: match["bold"] or match["under"], sentences[at]) if at < len(sentences) else ""
            )
        if value.strip(_AROUND) and not value.rstrip("* ").endswith(("?", "？")):
            answer, explanation = _value(value, options)
            # What is announced and no value is a statement, too: it differs from any other.
            if answer or not heading:
                yield _Statement(answer or _UNREAD, at, explanation, True)


def _final(text: str, sentences: Sequence[str], options: tuple[str, ...]) -> Iterator[_Statement]:
    """Yield the last line where it is bold or bare."""
    line = text.rpartition("\n")[2].strip()
    if not sentences or _HEADING.fullmatch(line):
        return
    # Options line by line are a menu.
    listed = len(sentences) > 1 and _LETTER.fullmatch(sentences[-2].strip(_AROUND + "-•>|")) is not None
    bold = list(_BOLD.finditer(line))
    end = len(sentences) - 1
    if len(bold) == 1 and not line[bold[0].end() :].strip(_AROUND):
        lead, content = line[: bold[0].start()], bold[0]["bold"] or bold[0]["under"]
        stated = (not lead.strip(_AROUND + "#>-") and not listed) or (_COPULA.search(lead) and not _DOUBT.search(lead))
        if (
            stated
            and (answer := _value(content, options))
            and answer[0]
            and not answer[1]
            and not content.endswith(":")
        ):
            yield _Statement(answer[0], end, "", False)
        return
    bare = _trimmed(line)
    letter = _LETTER.fullmatch(bare)
    letter_only = letter is not None and not letter["rest"] and not listed
    small = text == line and re.fullmatch(r"\(?[a-h]\)?", bare) is not None
    whole = text == line and (_option(bare, options) or _BARE_NUMBER.fullmatch(bare) is not None)
    if whole or (options and (letter_only or small)):
        yield _Statement(bare, end, "", False)


def _value(text: str, options: tuple[str, ...]) -> tuple[str | None, str]:
    """Return the value at the start of a text and the explanation behind it; None for no value."""
    text = _ENDING.sub("", _trimmed(text))
    if text and _option(text, options):
        return text, ""
    because = _BECAUSE.search(text)
    value, explanation = text, ""
    if because is not None:
        value, explanation = _trimmed(text[: because.start()]), text[because.start() :]
    if not value or len(value) > LONGEST_VALUE or "\n" in value:
        return None, explanation
    if _option(value, options):
        return value, explanation
    if len(value.split()) > 1 and (_DOUBT.search(value.replace(" or ", " ")) or _VERB.search(value)):
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


def _agrees(explanation: str, answer: str, options: tuple[str, ...]) -> bool:
    """Return whether an explanation says the answer again, no other one, and nothing of doubt."""
    if _DOUBT.search(explanation):
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
        return named == {key}
    numbers = _NUMBER.findall(explanation)
    values = _NUMBER.findall(answer)
    return (
        len(values) == 1 and bool(numbers) and float(numbers[-1].replace(",", "")) == float(values[0].replace(",", ""))
    )
