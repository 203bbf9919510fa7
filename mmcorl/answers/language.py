"""Languages that write a decimal comma, known by the words of a text, and numbers written so."""

from __future__ import annotations

import re

_FUNCTION_WORDS = """
der die das und ist sind ein eine mit von für nicht lösung antwort ergebnis het een niet antwoord oplossing
og er ikke svaret løsningen och är inte
le la les des est sont une pour avec dans donc réponse el los las es son una por para con respuesta solución
resultado os as é são uma não com resposta il gli lo sono risposta soluzione quindi este sunt răspunsul
wie was welche welcher welches wat hoe hoeveel welke combien quel quelle quels quelles cuál cuánto cuánta cuántos
cuántas qué cómo qual quais quanto quanta quantos quantas quale quanti quante come kaç nedir nasıl ile jaka jaki jakie
jest są nie odpowiedź wynik wynosi je jsou není odpověď výsledek ve bir cevap sonuç adalah jawaban đáp án là
"""
"""Function words of Germanic, Romance and some Slavic languages, Turkish, Indonesian and Vietnamese."""
_WORD = re.compile(r"[^\W\d_]+")
_ENGLISH_TEXT = (
    "the is are of and to in so we that answer therefore what which how find if for with by at on from who where when "
    "does do has have be this it its"
)
_ENGLISH = frozenset(_ENGLISH_TEXT.split())
_WORDS = frozenset(_FUNCTION_WORDS.split())
_CYRILLIC = re.compile(r"[\u0400-\u04ff]{3}")
# Of `1,234` nobody can say what it is.
_DECIMAL = re.compile(r"(?<![\d.,])(\d{1,3}(?:\.\d{3})+|\d{1,12}),(?!\d{3}(?!\d))(\d{1,12})(?![\d,])")
_BRACKETS = re.compile(r"[(\[]|\\\{")
_READ = 4000


def writes_decimal_commas(text: str) -> bool:
    """Return whether a text is in a language that writes 3,5 for 3.5: more of its words are than English ones."""
    if _CYRILLIC.search(text, 0, _READ):
        return True
    words = [word.casefold() for word in _WORD.findall(text[-_READ:])]
    foreign = sum(word in _WORDS for word in words)
    return foreign > sum(word in _ENGLISH for word in words)


_IN_BRACES = re.compile(r"(?<![\d.,}])(\d{1,12})((?:\{,\}\d{1,12})+)(?!\d)")


def without_braced_commas(answer: str, decimal: bool) -> str:
    """Return an answer whose `{,}`, a comma within one number, is gone: 1234 for `1{,}234`, 3.5 for `3{,}5`.

    `decimal`: the language writes decimal commas, so that `1{,}234` is 1.234. What is neither stays as it is and is
    no number.
    """
    return _IN_BRACES.sub(lambda match: _without_braces(match, decimal), answer)


def _without_braces(match: re.Match[str], decimal: bool) -> str:
    whole, groups = match.group(1), match.group(2).split("{,}")[1:]
    thousands = whole[0] != "0" and len(whole) <= 3 and all(len(group) == 3 for group in groups)
    if thousands and not (decimal and len(groups) == 1):
        return whole + "".join(groups)
    return f"{whole}.{groups[0]}" if len(groups) == 1 else "'".join([whole, *groups])


def with_decimal_points(answer: str) -> str:
    """Return `3.5` for `3,5` and `1234.5` for `1.234,5`; commas in brackets part values unless semicolons do."""
    if ";" not in answer and _BRACKETS.search(answer):
        return answer
    return _DECIMAL.sub(lambda match: f"{match.group(1).replace('.', '')}.{match.group(2)}", answer)
