"""Numbers in words: the words of each language for some numbers, and the one grammar by which they make all others.

number = [number] scale [number] | hundreds [below] | below     what stands before or behind a scale is smaller than it
below  = ten [one] | one ten (Germanic) | sixty or eighty and a teen (French)
"""

from __future__ import annotations

import re
import unicodedata
from fractions import Fraction
from functools import lru_cache

_VALUES = (*range(20), *range(20, 100, 10), 100, 1000, 10**6, 10**9, 10**12)
# What joins tens and ones, then the words in the order of the values; a stroke parts spellings, a dash is none.
_LANGUAGES = """

- zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen
eighteen nineteen twenty thirty forty fifty sixty seventy eighty ninety hundred/hundredand thousand/thousandand
million/millionand billion/billionand trillion/trillionand

und null eins/ein/eine zwei drei vier fünf sechs sieben acht neun zehn elf zwölf dreizehn vierzehn fünfzehn sechzehn
siebzehn achtzehn neunzehn zwanzig dreißig vierzig fünfzig sechzig siebzig achtzig neunzig hundert tausend
million/millionen milliarde/milliarden -

et zéro un/une deux trois quatre cinq six sept huit neuf dix onze douze treize quatorze quinze seize dixsept dixhuit
dixneuf vingt trente quarante cinquante soixante septante quatrevingt nonante cent mille
million/millions milliard/milliards -

y cero uno/un/una dos tres cuatro cinco seis siete ocho nueve diez once doce trece catorce quince dieciséis diecisiete
dieciocho diecinueve veinte/veinti treinta cuarenta cincuenta sesenta setenta ochenta noventa cien/ciento/cientos mil
millón/millones - -

e zero um/uma dois/duas três quatro cinco seis sete oito nove dez onze doze treze catorze/quatorze quinze
dezesseis/dezasseis dezessete/dezassete dezoito dezenove/dezanove vinte trinta quarenta cinquenta sessenta setenta
oitenta noventa cem/cento/centos mil milhão/milhões bilhão/bilhões -

e zero uno/un/una due tre/tré quattro cinque sei sette otto nove dieci undici dodici tredici quattordici quindici sedici
diciassette diciotto diciannove venti/vent trenta/trent quaranta/quarant cinquanta/cinquant sessanta/sessant
settanta/settant ottanta/ottant novanta/novant cento mille/mila milione/milioni miliardo/miliardi -

en nul een twee drie vier vijf zes zeven acht negen tien elf twaalf dertien veertien vijftien zestien zeventien achttien
negentien twintig dertig veertig vijftig zestig zeventig tachtig negentig honderd duizend miljoen miljard -

- ноль один/одна два/две три четыре пять шесть семь восемь девять десять одиннадцать двенадцать тринадцать четырнадцать
пятнадцать шестнадцать семнадцать восемнадцать девятнадцать двадцать тридцать сорок пятьдесят шестьдесят семьдесят
восемьдесят девяносто сто/сот тысяча/тысячи/тысяч миллион/миллиона/миллионов миллиард/миллиарда/миллиардов -

- 영 하나/한 둘/두 셋/세 넷/네 다섯 여섯 일곱 여덟 아홉 열 - - - - - - - - - 스물/스무 서른 마흔 쉰 예순 일흔
여든 아흔 - - - - -
"""
_HUNDREDS = {
    "dos": {"quinientos": 500, "setecientos": 700, "novecientos": 900},
    "dois": {"duzentos": 200, "duzentas": 200, "trezentos": 300, "trezentas": 300, "quinhentos": 500},
    "два": {"двести": 200, "триста": 300, "четыреста": 400},
}
"""Those of Spanish, Portuguese and Russian that are no number with a hundred."""
_TENS = (*range(11), 100, 1000, 10**4, 10**8)
_SINOGRAMS = dict(zip("〇一二三四五六七八九十百千万亿零两兩萬億", (*_TENS, 0, 2, 2, 10**4, 10**8), strict=True))
_KOREAN = dict(zip("공일이삼사오육칠팔구십백천만억", _TENS, strict=True))
_SCALES = frozenset({100, 1000, 10**4, 10**6, 10**8, 10**9, 10**12})
_NOT_ALONE_TEXT = (
    "hundred thousand million billion trillion null ein eine un une uno una um uma een elf once due cent mil sept mila "
    "sot seize doze vent trent 이 일 사 오 구 한 두 세 네"
)
_NOT_ALONE = frozenset(_NOT_ALONE_TEXT.split())
"""What alone is rather an article, an English word or a scale that wants a number before it."""
_WITH_COUNTER = re.compile(rf"([{''.join(_SINOGRAMS)}点]+) ?([^\W\d_]{{1,4}})")
_MARKS = re.compile("[\u0300-\u036f]")


def _folded(text: str) -> str:
    """Return letters without their case and marks, and without what stands between them."""
    letters = _MARKS.sub("", unicodedata.normalize("NFD", text.casefold()))
    return unicodedata.normalize("NFC", letters).replace(" ", "").replace("-", "")


def _language(line: str) -> tuple[dict[str, int], re.Pattern[str], str]:
    joint, *spelled = line.split()
    words = {_folded(word): value for value, words in zip(_VALUES, spelled, strict=True) for word in words.split("/")}
    words |= _HUNDREDS.get(spelled[2].partition("/")[0], {})
    words.pop("", None)
    longest = "|".join(sorted(words, key=len, reverse=True))
    return words, re.compile(f"({longest})|{joint if joint != '-' else '(?!)'}{'|s$' if joint == 'et' else ''}"), joint


_TABLES = [_language(line) for line in _LANGUAGES.strip().split("\n\n")]


@lru_cache(maxsize=1 << 12)
def numeral(text: str, alone: bool = True) -> Fraction | None:
    """Return the number that words of one language are; None for other text, and where `alone` words are rather not."""
    folded = _folded(text) if len(text) <= 80 else ""
    if not folded or (alone and folded in _NOT_ALONE):
        return None
    for table in (_SINOGRAMS, _KOREAN):
        if folded[0] in table:
            return _east_asian(folded, table)
    for words, pattern, joint in _TABLES:
        parts, at = [], 0
        while (match := pattern.match(folded, at)) is not None:
            parts += [words[match.group(1)]] if match.group(1) else []
            at = match.end()
        germanic = joint in ("und", "en")
        # `vier und zwanzig` may be two numbers, `vierundzwanzig` is one.
        if parts and at == len(folded) and not (germanic and f" {joint} " in text):
            value = _composed(parts, germanic, _SCALES)
            return None if value is None else Fraction(value)
    return None


def with_counter(text: str) -> tuple[Fraction, str] | None:
    """Return (24, `个`) for `二十四个`; None for other text."""
    match = None if text.isascii() else _WITH_COUNTER.fullmatch(text)
    number = numeral(match.group(1), alone=False) if match else None
    return None if match is None or number is None else (number, match.group(2))


def _east_asian(text: str, table: dict[str, int]) -> Fraction | None:
    below, of, above = text.partition("分之")
    if of:
        parts = [_east_asian(part, table) if part else None for part in (above, below)]
        return parts[0] / parts[1] if parts[0] is not None and parts[1] else None
    whole, point, decimals = text.partition("点")
    if not set(whole + decimals) <= table.keys() or (point and not decimals):
        return None
    values, places = [table[char] for char in whole], [table[char] for char in decimals]
    if len(values) > 3 and max(values) < 10:
        # A year: `二〇二四`.
        value: int | None = int("".join(map(str, values)))
    elif len(values) > 2 and table is _SINOGRAMS and values[-2] >= 100 and values[-1] < 10:
        # 105 in Japanese, and 150 in Chinese.
        value = None
    else:
        value = _composed([value for value in values if value] or [0], False, _SCALES | {10})
    if value is None or max(places, default=0) > 9:
        return None
    return value + Fraction(int("".join(map(str, places)) or "0"), 10 ** len(places))


def _composed(parts: list[int], germanic: bool, scales: frozenset[int]) -> int | None:
    top, first, last = max(parts), parts[0], parts[-1]
    at = parts.index(top)
    if len(parts) == 1:
        return top
    if top in scales or (top > 100 and at == 0):
        above = _composed(parts[:at], germanic, scales) if at else 1
        below = _composed(parts[at + 1 :], germanic, scales) if parts[at + 1 :] else 0
        most = top if top in scales else 100
        return above * top + below if above and above < top and below is not None and below < most else None
    decimal = first and first % 10 == 0 and 0 < last < 10
    swapped = germanic and 0 < first < 10 < last and last % 10 == 0
    return first + last if len(parts) == 2 and (decimal or swapped or (first in (60, 80) and 10 <= last < 20)) else None
