r"""Words around an answer that keep it from being one.

An answer is stated unless its sentence, or what follows, makes it something else:

supposed    = a sentence that opens with a condition (`if`, `suppose`) and has not reached its consequence yet
example     = `for example` before it in its sentence
mistake     = in its sentence, what others get wrong: a common mistake, a wrong answer, what one is tempted to say
denied      = `not`, `rather than` in the few words before it
taken back  = behind it a question mark, that it is wrong, or a sentence that opens by correcting oneself

A consequence (`then`, `so`, a comma behind the condition) or a contrast (`but`, `the right answer`) between such words
and the answer states it again. The words are conjunctions, interjections and the vocabulary of being wrong: classes
that a language does not extend.
"""

from __future__ import annotations

import re
from functools import lru_cache

_BEFORE, _BEHIND = 320, 1000
# The set comes first because it is what a search is fast by.
_SENTENCE_END = re.compile(r"[.!?。！？\n](?:(?<=[。！？\n])|(?<!e\.g\.)(?<!z\.B\.)(?<!i\.e\.)(?=[\s$*)\"]|\Z))")
_ABBREVIATIONS = frozenset({"e.g", "z.B", "i.e"})
# Marks of a list, and words that open a sentence without changing what it says.
_OPENING = (
    r"(?:[\s>#*_$\-–—•(]|\d+[.)]|(?:so|and|but|now|well|ok|okay|here|let us|let me|let's|we (?:can|could|may))\b,?)*"
)
# Sentences that ask to suppose something suppose all of it; conditions end with a comma.
_SUPPOSE = re.compile(
    _OPENING + r"(?:suppose|assume|imagine|pretend|say(?=(?: that| the \w+ (?:is|was|were)|,? ?[A-Za-z]? ?[$\\=]"
    r"|,? ?\Z))|angenommen|supposons|imaginons|supongamos|supón|supponiamo"
    r"|suponha|suponhamos|допустим|предположим|załóżmy|stel|anta|antag|misalkan|giả sử)\b",
    re.IGNORECASE,
)
_CONDITION = re.compile(
    _OPENING
    + r"(?:(?:(?:even )?if|supposing|assuming|unless|had|were|wenn|falls|если|jeśli|eğer|jos|pokud|když|jika|nếu"
    r"|εάν|αν|לו|אם|إذا|لو|अगर|यदि)\b|s'il\b"
    # Before a verb these are `one`: `si ottiene`, `se obtiene`.
    r"|s[ie] (?=[$\\]|[a-z]\b|l[aeo]s?\b|el\b|il\b|un|on\b|nous\b|cela\b)"
    r"|如果|假设|假如|假使|假定|若|设|もし|仮に|만약|만일|ถ้า|หาก)",
    re.IGNORECASE,
)
_THEN = (
    r"\\(?:Rightarrow|implies|therefore|to)(?![A-Za-z])|[⇒→∴;；]"
    r"|\b(?:then|so|thus|hence|therefore|we (?:get|have|find|obtain|see)|it follows|dann|alors|entonces"
    r"|allora|então|то|тогда)\b|则|那么|就|ならば|면"
)
_CONSEQUENCE = re.compile(rf"[,:，：、]|\bthe answer\b|{_THEN}", re.IGNORECASE)
_STRICT_CONSEQUENCE = re.compile(_THEN, re.IGNORECASE)
_EXAMPLE = re.compile(
    r"\b(?:for (?:example|instance)|e\.g|(?:an?|one|another) example (?:is|of|would)|z\. ?b|zum beispiel|beispielsweise"
    r"|par exemple|por ejemplo|per esempio|por exemplo|bijvoorbeeld|till exempel|for eksempel|esimerkiksi|na przykład"
    r"|například|например|örneğin|misalnya|contohnya|ví dụ|παράδειγμα)\b|例如|比如|譬如"
    r"|たとえば|例えば|예를 들어|예컨대|مثلا|לדוגמה|उदाहरण",
    re.IGNORECASE,
)
_FREQUENT = (
    r"(?:common|frequent|typical|usual|classic|careless|popular|easy|likely|häufiger?|typischer?|частая|распростран\w+)"
)
_SLIP = r"(?:mistake|error|misconception|pitfall|trap|slip|blunder|distractor|fehler|ошибк\w+)"
_MISTAKE = re.compile(
    rf"\b{_FREQUENT} (?:\w+ ){{0,2}}?{_SLIP}s?\b|\b(?:the|a|an|is) (?:mistake|trap|pitfall"
    rf"|misconception)s? (?:here )?(?:is|was|to|of|would)\b"
    r"|\btempt(?:ed|ing|ation|s)?\b|\b(?:wrongly|incorrectly|mistakenly|erroneously|naively|falsely|fälschlich\w*)\b"
    r"|\b(?:wrong|incorrect|naive|naïve|mistaken|erroneous|flawed|faulty|hasty)\W{1,3}(?:\w+ )?(?:answers?|solutions?"
    r"|guess|conclusion"
    r"|reasoning|approach|calculation|attempt)\b"
    r"|\berreur (?:fréquente|courante|classique|commune)|\berror (?:común|frecuente|típico)|\berrore (?:comune"
    r"|frequente|tipico)"
    r"|\b(?:réponse (?:incorrecte|fausse)|respuesta (?:incorrecta|errónea)|risposta (?:errata|sbagliata)|fout antwoord"
    r"|resposta (?:incorreta|errada)|falsche antwort|не(?:верный|правильный) ответ)\b"
    r"|\berro (?:comum|frequente)|常见(?:的)?(?:错误|误区)|错误(?:的)?(?:答案|做法|解法)|误(?:以为|认为)"
    r"|よくある(?:間違い|誤り)|흔한 실수",
    re.IGNORECASE,
)
_CONTRAST = re.compile(
    r";|, (?:so|hence|thus|therefore|leaving) ?\W{0,2}\Z|\b(?:but|however|instead|whereas|while|yet|aber|jedoch"
    r"|sondern|mais|pero|sino|ma|mas|но|а)\b"
    r"|\b(?:right|correct|correctly|true|actual|proper)\b|但|而|正确|しかし|하지만|정답",
    re.IGNORECASE,
)
_DENIED = re.compile(
    r"(?:\b(?:not|never|cannot|neither|nor|instead of|rather than|other than)|n't|≠|不是)(?: ?[A-Za-z]{1,9}){0,3}"
    r"(?:[\s$:*}]|\\[(\[,;])*\Z",
    re.IGNORECASE,
)
_WRONG = r"(?:wrong|incorrect|mistaken|false|invalid|impossible|an? (?:mistake|error|typo))"
_NOT_SO = r"not (?:the|right|correct|valid|possible|allowed|a solution|an answer|what)\b"
_TAKEN_BACK = re.compile(
    r"\b(?:(?-i:Wait\b)|wait[,.!…]|hold on|oops|(?:scratch|strike|disregard|ignore|forget) (?:that|this|it"
    r"|the (?:above|previous|last))"
    r"|my (?:mistake|bad|apologies)|on second thoughts?|i take (?:that|it|this) back|i meant|i stand corrected"
    r"|actually,? (?:no|(?:that|this|it)(?:'s| is| was| should| must))|let me (?:correct|fix))(?![A-Za-z])"
    r"|\b(?:this|that|it|which|my answer|(?:the )?(?:above|box\w*|previous) ?\w{0,6})"
    rf"(?:(?: (?:is|was|seems|looks|must be|would be)|'s) (?:\w{{1,10}} ){{0,2}}?(?:not (?:right|correct"
    rf"|the (?:\w+ )?answer)|{_WRONG})"
    r"| (?:isn't|wasn't|can't be|cannot be) (?:right|correct|the (?:\w+ )?answer))\b"
    r"|\bI (?:made (?:\w{1,9} ){1,2}(?:mistake|error|slip|typo)|forgot|overlooked|misread|miscalculated"
    r"|mis\w{3,12})\b|等等|不对|错了|更正",
    re.IGNORECASE,
)
# The sentence of the box goes on: `\boxed{14} is wrong`, `\boxed{14} would not be right`.
_SAID_OF_IT = re.compile(
    rf"[\s$*_)}}\]\\]{{0,12}}(?:is|was|would be|are|must be|seems) (?:\w{{1,10}} ){{0,2}}?(?:{_NOT_SO}|{_WRONG}\b)"
    r"|[\s$*_)}\]\\]{0,12}(?:isn't|wasn't|can't be|cannot be|would not be|wouldn't be)\b",
    re.IGNORECASE,
)
# The first word of a later sentence: an interjection of one who corrects himself.
_CORRECTION = re.compile(
    r"(?:correction|sorry|apologies|hmm+|um+|nope|korrektur|falsch|entschuldigung|verzeihung|moment|pardon|désolée?"
    r"|oups"
    r"|erreur|faux|perdón|lo siento|incorrecto|corrección|espera|scusa|scusate|sbagliato|errato|desculpe|errado"
    r"|correção"
    r"|fout|fel|feil|błąd|przepraszam|неверно|неправильно|ошибка|извините|стоп|yanlış|pardon|salah|maaf|sai|xin lỗi)\b"
    r"|(?:no|non|nein|nee|nej|não|нет|nie|hayır|tidak|không)\s?[,.:;!–—-]|c'est faux|es falsch"
    r"|抱歉|错误|修正|いや|間違|訂正|잠깐|아니|틀렸|정정"
    r"|خطأ|عفوا|गलत|माफ़",
    re.IGNORECASE,
)


def is_retracted(before: str, behind: str) -> bool:
    """Return whether the words before an answer or those behind it keep it from being stated."""
    return is_taken_back(behind) or is_denied(before)


def is_denied(before: str) -> bool:
    """Return whether the words before an answer, the last of `before`, keep it from being stated."""
    return bool(sentence := sentence_before(before)) and _is_unstated(sentence)


def sentence_before(before: str) -> str:
    """Return the sentence that the end of a text stands in, at most its last 320 characters."""
    return _last_sentence(before[-_BEFORE:])


@lru_cache(maxsize=1 << 6)
def _last_sentence(window: str) -> str:
    start = 1 + window.rfind("\n")
    if not window.isascii():
        start = max(start, *(1 + window.rfind(end) for end in "。！？"))
    for end in (". ", "! ", "? ", ".$", ".*", '."'):
        at = window.rfind(end, start)
        while at >= 0 and window[max(0, at - 3) : at] in _ABBREVIATIONS:
            at = window.rfind(end, start, at)
        start = max(start, at + 1)
    return window[start:]


@lru_cache(maxsize=1 << 12)
def _is_unstated(sentence: str) -> bool:
    if _DENIED.search(sentence, max(0, len(sentence) - 48)):
        return True
    if (supposed := _SUPPOSE.match(sentence)) is not None:
        return not _STRICT_CONSEQUENCE.search(sentence, supposed.end())
    if (condition := _CONDITION.match(sentence)) is not None and not _CONSEQUENCE.search(sentence, condition.end()):
        return True
    if (example := _EXAMPLE.search(sentence)) is not None:
        # `for example, 3`: the comma behind the words themselves is no consequence.
        return not _CONSEQUENCE.search(sentence[example.end() :].lstrip(" .,:，："))
    mistakes = [match.end() for match in _MISTAKE.finditer(sentence)]
    return bool(mistakes) and not _CONTRAST.search(sentence, mistakes[-1])


def is_taken_back(behind: str) -> bool:
    """Return whether the words behind an answer, the first of `behind`, take it back."""
    behind = behind[:_BEHIND]
    if not behind.strip(" $*.}\n"):
        return False
    if behind.lstrip(" $*_)}]\\")[:1] in {"?", "？"}:
        return True
    if _TAKEN_BACK.search(behind) or _SAID_OF_IT.match(behind):
        return True
    return any(
        _CORRECTION.match(behind[match.end() :].lstrip(" \n*_$>-–—")) for match in _SENTENCE_END.finditer(behind)
    )
