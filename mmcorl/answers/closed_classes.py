"""Words of closed classes, by class and language: those that say of a value what becomes of it, or nothing at all.

Languages do not extend these classes, and nobody else lists their words. `_` is a space, and `*` ends a stem. A word
stands once in each class that it belongs to, whatever its language; zh, ja, ko and th are also read within runs.
"""

from __future__ import annotations

from functools import lru_cache

_TABLE = """
# makes another value of one, or none
negation = en: not never nor neither cannot; de: nicht nie niemals; nl: niet nooit; sv: inte ikke ikkje aldrig; fr:
    pas jamais; es: nunca no_es no_son no_era no_puede; pt: não; it: non; pl: ne není; ru: не; tr: değil; id: bukan
    tidak; vi: không; el: δεν όχι; ar: ليس; he: לא; hi: नहीं; th: ไม่; zh: 不 不是 并非 未必; ja: ではな ません; ko:
    아니 아닌 않
absence = en: no none without nowhere except excluding besides lack lacks misses denies; de: kein keine keinen
    ohne; nl: geen zonder; sv: ingen inga; fr: ne aucun aucune sans; es: sin ningún ni; pt: nem sem nenhum; it:
    senza nessun né; pl: bez; ru: нет без ни кроме; tr: hayır; ar: لا; zh: 没 无 非 未 没有; ja: ない
instead = en: instead_of rather_than other_than apart_from; de: statt anstelle; fr: au_lieu_de plutôt_que; es:
    en_vez_de en_lugar_de; it: invece_di; ru: вместо; zh: 而不是
alternative = en: or either alternatively or_else; de: oder entweder; nl: ofwel; sv: eller; fr: ou soit; es: o ó;
    it: oppure ovvero; pl: lub albo nebo anebo; ru: или либо або; tr: veya; id: atau; vi: hoặc; el: ή; ar: أو; he:
    או; hi: या; th: หรือ; zh: 或 或者 还是; ja: または あるいは もしくは; ko: 또는 혹은
condition = en: if even_if unless provided supposing assuming whether in_case depending; de: wenn falls sofern; nl:
    indien mits; fr: s'il s'ils; pl: jeśli jeżeli jestli pokud když; ru: если якщо; tr: eğer; fi: jos; id: jika
    kalau; vi: nếu; el: εάν αν; ar: إذا لو; he: אם לו; hi: अगर यदि; th: ถ้า หาก; zh: 如果 假如 假使 若 倘若 除非;
    ja: もし 仮に; ko: 만약 만일
reflexive = es: si; pt: se
supposition = en: suppose supposes assume assumes assumed imagine pretend say let's_say hypothetically; de:
    angenommen; nl: stel; sv: anta antag; fr: supposons imaginons admettons; es: supongamos supón imaginemos; pt:
    suponha suponhamos; it: supponiamo ammettiamo; pl: załóżmy předpokládejme; ru: допустим предположим припустимо;
    id: misalkan; vi: giả_sử; zh: 假设 假定 设
modal = en: might may could
unsure = en: unsure uncertain not_sure not_certain not_confident not_convinced not_entirely_sure not_fully_sure
    not_completely_sure not_totally_sure not_100 not_really_sure not_too_sure not_quite_sure not_entirely_certain
    not_absolutely_sure not_very_confident not_very_sure no_idea can't_be_sure cannot_be_sure hard_to_say
    unverified not_verified i_wonder might_be_wrong could_be_wrong may_be_wrong just_a_guess only_a_guess
    just_guessing wild_guess educated_guess; de: nicht_sicher nicht_ganz_sicher; fr: pas_sûr pas_certain pas_sûre;
    es: no_estoy_seguro no_estoy_segura no_sé; ru: не_уверен не_уверена; zh: 不确定 不敢肯定 不能确定 没把握
assurance = en: no_doubt without_doubt without_a_doubt beyond_doubt not_only thinks_of think_of thought_of
doubt = en: maybe perhaps possibly probably likely unlikely presumably seemingly apparently supposedly allegedly
    hopefully tentatively seems seem seemed it_appears appears_to_be guess guessing i'd_guess don't_know
    do_not_know doubt doubtful plausibly conceivably may_be_that might_be_that could_be_that; de: vielleicht
    möglicherweise wahrscheinlich vermutlich eventuell könnte dürfte unsicher scheint; nl: misschien waarschijnlijk
    mogelijk; sv: kanske måske kanskje; fr: peut-être probablement sans_doute pourrait semble; es: quizá quizás
    tal_vez probablemente podría parece; pt: talvez provavelmente poderia; it: forse probabilmente potrebbe sembra;
    pl: może prawdopodobnie možná; ru: возможно наверное вероятно наверно может_быть мабуть; tr: belki muhtemelen;
    id: mungkin; vi: có_lẽ; el: ίσως; ar: ربما; he: אולי; hi: शायद; zh: 可能 也许 或许 大概 猜; ja: かもしれ 多分
    たぶん おそらく; ko: 아마 아마도
bound = en: more_than less_than fewer_than greater_than smaller_than larger_than less_than_or_equal_to
    greater_than_or_equal_to at_least at_most no_more_than no_less_than no_fewer_than not_more_than not_less_than
    more less least fewer greater smaller larger exceed exceeds exceeding short up_to; de: mindestens höchstens
    mehr weniger; nl: minstens meer minder; sv: mer mindre minst; fr: moins; es: más menos; pt: mais; it: più meno;
    pl: więcej mniej; ru: больше меньше более менее; zh: 至少 至多 最多 最少 超过 少于 多于 以上 以下 不到 不少于
    不超过; ja: 未満 より; ko: 이상 이하 미만 초과
relative = en: from by between within over under above below beyond until till before than per
operation = en: minus plus
direction = en: since after up most would should other another; de: als; fr: que
approximation = en: about approximately approx approx. around roughly nearly almost close near circa ca ca. barely
    hardly scarcely; de: etwa ungefähr beinahe; nl: ongeveer bijna; sv: ungefär cirka omkring; fr: environ presque
    quasi; es: aproximadamente casi; pt: quase; pl: około asi prawie; ru: около примерно почти; tr: yaklaşık; id:
    sekitar; vi: khoảng; el: περίπου; zh: 约 大约 几乎 左右; ja: ほぼ 約; ko: 약 거의
arithmetic = en: more_than less_than fewer_than greater_than half twice double doubled doubles triple tripled
    triples thrice times multiplied divided added subtracted squared cubed every halves halved mod modulo dozen
    dozens hundred hundreds thousand million billion previous; de: halb doppelt; fr: demi; es: mitad doble; pt:
    metade dobro; it: metà doppio
share = en: percent per
part = en: half third quarter fifth tenth root square cube power multiple multiples factor factors divisor divisors
    reciprocal inverse negative opposite complement logarithm log factorial successor predecessor some any each
    none part out
lapse = en: invalid impossible fails fail failing failed violates contradicts avoids doubts misses
# says something of an answer
wrong = en: wrong incorrect mistaken false erroneous flawed faulty naive naïve hasty extraneous inadmissible bogus
    spurious absurd; de: falsch falsche falscher; nl: fout onjuist verkeerd; sv: fel feil; fr: faux fausse
    incorrecte; es: falso falsa incorrecto incorrecta errónea; pt: errado errada incorreta; it: errato errata
    sbagliato sbagliata; pl: błędny błędna; ru: неверно неправильно неверный неправильный; tr: yanlış; id: salah;
    zh: 错 错误 有误 不对; ja: 間違 誤り; ko: 틀렸 틀린
wrongly = en: wrongly incorrectly mistakenly erroneously naively falsely tempt tempted tempting temptation tempts
    misled; de: fälschlich fälschlicherweise; zh: 误以为 误认为
slip = en: mistake mistakes misconception misconceptions pitfall pitfalls trap traps
error = en: error errors slip slips blunder blunders distractor distractors fallacy; de: fehler; fr: erreur
    erreurs; it: errore; pt: erro; ru: ошибка ошибки; zh: 错误 误区; ja: 間違い 誤り; ko: 실수
frequent = en: common frequent typical usual classic careless popular easy likely; de: häufig häufiger typischer;
    fr: fréquente courante classique commune; es: común frecuente típico; it: comune frequente tipico; pt: comum;
    ru: частая распространённая распространенная; zh: 常见 典型 常犯; ja: よくある; ko: 흔한
role = en: as; de: als; fr: comme; es: como
trial = en: try trying test testing check consider substitute plug verify; de: teste prüfe; fr: essayons vérifions;
    es: probemos
inverted = en: were had should
between = en: between; de: zwischen; fr: entre; it: tra; ru: между
provisional = en: intermediate partial preliminary provisional interim
habit = en: often usually commonly frequently typically sometimes unlike different
misdeed = en: forgot overlooked misread misreads misunderstood miscounted miscalculated miscalculate misjudged
    misinterpreted misapplied
made = en: made_a made_an made_some
reasoning = en: conclusion reasoning approach calculation
allowed = en: valid possible allowed; de: stimmt
suffice = en: satisfy work hold fit check match solve answer add_up; de: stimmt
checking = en: verification check
deixis = en: above previous last earlier preceding box boxed; fr: précédent; es: anterior
irrealis = en: would; de: wäre würde; ru: бы
rejection = en: reject* exclud* discard* eliminat* dismiss* disregard* ignor* avoid* refut* rule_out rules_out
    ruled_out ruling_out cross_out crossed_out; de: verwerfen verworfen ausschließen ausgeschlossen; fr: rejet*
    exclu* écart*; es: rechaz* descart*; it: scart* esclud*; ru: отверг* исключ* отброс*; zh: 排除 舍去 舍
saying = en: says said say claims claimed claim claiming thinks thought think believes believed believe asserts
    asserted argues argued suggests suggested insists insisted guesses guessed reckons estimated estimates
    concluded concludes proposed proposes told reported reports declared declares stated states answers answered
    wrote writes replied replies gave; de: sagt behauptet meint glaubt denkt sagte meinte; nl: zegt beweert; fr:
    dit affirme prétend croit pense; es: dice afirma cree piensa; pt: diz acha; it: afferma pensa; ru: говорит
    утверждает думает считает; zh: 说 认为 声称 觉得
source = en: student students teacher friend someone somebody people many classmate author textbook book key manual
    solutions he she they everyone anyone colleague neighbour neighbor tutor website internet forum wikipedia model
    models solver solvers beginner beginners calculator others him her them; de: schüler schülerin lehrer jemand er
    sie freund; fr: élève professeur quelqu'un il elle ami; es: alumno alumna profesor alguien amigo él ella; it:
    studente qualcuno professore; pt: aluno alguém; ru: ученик учитель друг он она; zh: 同学 老师 有人 小明 小红 他
    她 学生
according = en: according_to as_per; de: laut; fr: selon d'après; es: según; pt: segundo; ru: согласно; zh: 根据
tentative = en: guess guesses bound bounds estimate estimates approximation conjecture attempt hunch example
    template placeholder format distractor ballpark hypothesis misprint draft thought; de: schätzung schranke
    vermutung; fr: estimation borne exemple; es: estimación conjetura; it: stima; zh: 猜测 上界 下界 估计
retraction = en: make_that make_it oops whoops hold_on hang_on on_second_thought on_second_thoughts on_reflection
    my_mistake my_bad my_apologies i_stand_corrected i_meant i_take_that_back i_take_it_back i_take_this_back
    actually_no scratch_that scratch_this scratch_it strike_that strike_this never_mind nevermind let_me_correct
    let_me_fix let_me_redo i_misspoke i_retract i_withdraw i_am_retracting i_was_wrong after_all; de:
    habe_mich_vertan habe_mich_geirrt habe_mich_verrechnet; nl: heb_me_vergist; fr: me_suis_tromp*; es: me_equivo*
    me_he_equivo*; pt: me_enganei; it: mi_sono_sbagliat*; pl: pomyli*; ru: ошибся ошиблась ошибка_; zh: 等等 不对
    错了 更正 算错 算錯 作废 有误 有誤 撤回; ja: 間違え 間違い 誤りで 訂正; ko: 틀렸 잘못
dropping = en: disregard disregarding ignore ignoring forget scratch strike withdraw retract cancel discard
correction = en: wait correction sorry apologies hmm hm hmmm um umm nope oh_no; de: korrektur entschuldigung
    verzeihung; fr: désolé désolée oups; es: perdón lo_siento corrección; pt: desculpe correção; it: scusa scusate
    correzione; pl: przepraszam; ru: извините поправка; id: maaf; vi: xin_lỗi; zh: 抱歉 错误 修正; ja: いや
    すみません; ko: 잠깐 아니 정정; ar: خطأ عفوا; hi: गलत माफ़
interjection = en: no non stop incorrect wrong actually; de: nein falsch moment; nl: nee fout; sv: nej fel feil;
    fr: pardon erreur faux c'est_faux; es: incorrecto espera es_falso; pt: não errado; it: sbagliato errato; pl:
    nie błąd; ru: нет неверно неправильно ошибка стоп; tr: hayır yanlış; id: tidak salah; vi: không sai
example = en: for_example for_instance e.g e.g. example_is example_of example_would; de: z.b. z.b zum_beispiel
    beispielsweise; fr: par_exemple; es: por_ejemplo; it: per_esempio ad_esempio; pt: por_exemplo; nl:
    bijvoorbeeld; sv: till_exempel for_eksempel; fi: esimerkiksi; pl: na_przykład například; ru: например; tr:
    örneğin; id: misalnya contohnya; vi: ví_dụ; el: παράδειγμα; ar: مثلا; he: לדוגמה; hi: उदाहरण; zh: 例如 比如
    譬如; ja: たとえば 例えば; ko: 예를 예컨대
# joins clauses
consequence = en: so then thus hence therefore consequently it_follows as_a_result in_conclusion in_summary we_get
    we_have we_find we_obtain we_see this_means that_means which_means we_conclude; de: dann daher somit folglich
    deshalb also; nl: dus daarom; sv: alltså därför derfor; fr: donc alors ainsi par_conséquent; es: entonces
    por_lo_tanto por_tanto así_que luego; pt: logo portanto assim então; it: quindi dunque pertanto perciò allora;
    ro: deci; ru: следовательно значит таким_образом итак то тогда отже поэтому; pl: zatem więc tedy takže proto;
    tr: buna_göre dolayısıyla; id: jadi; vi: vậy; el: άρα; ar: لذلك; he: לכן; hi: इसलिए; zh: 因此 所以 故 综上
    综上所述 于是 则 那么 就; ja: よって したがって ならば; ko: 따라서 그러므로 면
contrast = en: but however instead whereas while yet although though nevertheless; de: aber jedoch sondern; nl:
    maar; fr: mais cependant; es: pero sino; pt: mas; it: ma invece; pl: ale lecz; ru: но а однако; zh: 但 但是 而
    然而; ja: しかし; ko: 하지만
reason = en: because since as given_that due_to; de: weil denn; nl: omdat; fr: parce_que puisque car; es: porque
    ya_que; pt: pois; it: perché poiché; ru: потому_что так_как; zh: 因为 由于
linking = en: that which who and where what how; de: dass und; fr: qui et; es: y; it: che; ru: и что
# leads to a value
copula = en: is are was were be equals equal; fr: c'est; de: ist sind war lautet beträgt wäre; nl: zijn bedraagt;
    sv: är er; fr: est sont; es: es son; pt: é são; it: è sono; ro: este sunt; ru: равен равна равно это
    составляет; pl: jest są je jsou; id: adalah; vi: là; el: είναι; ar: هي هو; he: הוא היא; hi: है; th: คือ; zh: 是
    为 等于 应 應 应为 應为 应是; ja: は です である; ko: 은 는 입니다 이다 이에요 예요 정답은 답은
particle = pl: to; fi: on
auxiliary = en: is are was were does do did can could will would should must may might has_been have_been cannot
having = en: have has had get gets got; de: gibt hat; fr: y_a; es: hay tiene; pt: há tem; it: ci ha; nl: heeft er
yielding = en: give gives gave yield yields obtain find becomes there_are there_is i_get we_get
answer = en: answer answers ans ans. result solution solutions option choice selection letter value; de: antwort
    ergebnis lösung auswahl; nl: antwoord uitkomst oplossing keuze optie; sv: svar svaret resultat løsning
    lösningen alternativ; fi: vastaus; fr: réponse résultat choix; es: respuesta resultado solución opción; pt:
    resposta solução opção; it: risposta risultato soluzione opzione; ro: răspuns răspunsul; ru: ответ результат
    решение вариант відповідь варіант; pl: odpowiedź wynik opcja odpověď výsledek možnost; tr: cevap yanıt sonuç
    seçenek seçeneği şık; id: jawaban jawabannya hasilnya pilihan; vi: đáp_án đáp án kết_quả kết quả lựa_chọn lựa
    chọn; el: απάντηση επιλογή; ar: الإجابة الجواب الخيار الاختيار النتيجة; he: תשובה התשובה אפשרות; hi: उत्तर
    विकल्प; th: คำตอบ ข้อ ตัวเลือก; zh: 答案 结果 选项 选择; ja: 答え 解答 正解 回答 選択肢 答; ko: 정답 답 선택지
    보기 번 정답은 답은
chosen = zh: 选 故选 所以选 应选 选为
right = en: final correct right required; de: richtige korrekte endgültige finale; nl: juiste correcte; sv: rätta
    riktige rigtige; fr: bonne; es: correcta; pt: correta; it: corretta esatta; ro: corect; ru: правильный
    правильная правильна окончательный правильно; pl: poprawna prawidłowa správná; tr: doğru; vi: đúng; el: σωστή;
    ar: الصحيحة النهائية; hi: सही; zh: 正确 最终 最后; ja: 最終的な; ko: 최종
revised = en: corrected revised new updated actual proper true real intended correctly best
adverb = en: actually really in_fact now therefore indeed thus instead then clearly simply just
pronoun = en: it this that these those there here he she they we i you; de: es er sie; fr: il elle c'est ce; es:
    ella; pt: isso; ru: он она
opener = en: let_me let_us let's we_can we_could we_may and now well ok okay here let once
restating = en: equivalent equivalently simply just in_other_words
speaker = en: i we my our me i'm i've
determiner = en: the a an his her their its our your one all each; de: der die das den ein eine; nl: het de een;
    sv: det ett en; fr: la le les un une; es: el los las una uno; pt: os as um uma; it: lo gli i; he: ה
quantity = en: total number amount quantity exactly altogether together left over remaining respectively namely i.e
    i.e.; de: insgesamt; es: en_total; it: una; ru: итого всего; tr: toplam; zh: 总共 一共 共有 共计 合计 共 有 个
    個 项; ja: 合計; ko: 개
of = en: of to for; de: von; fr: de; it: di; nl: van; sv: af av
in = en: in at on
"""
_CLASSES = dict(line.split(" = ") for line in _TABLE.replace("\n    ", " ").splitlines() if " = " in line)
_MARKS = "mathematics equals comma semicolon colon opening closing quote end question name"
"""Of these sentences consist beside words."""
_BITS = {name: 1 << bit for bit, name in enumerate((*_CLASSES, *_MARKS.split()))}


@lru_cache(maxsize=1 << 9)
def classes(names: str) -> int:
    """Return the set of the classes with these names."""
    return sum({_BITS[name] for name in names.split()})


WORDS: dict[str, int] = {}
_STEMS: dict[str, int] = {}
_PHRASES: dict[tuple[str, ...], int] = {}
for _name, _text in _CLASSES.items():
    for _word in (word for words in _text.split(";") for word in words.partition(":")[2].split()):
        if "_" in _word:
            _PHRASES[tuple(_word.split("_"))] = _PHRASES.get(tuple(_word.split("_")), 0) | _BITS[_name]
        else:
            _of = _STEMS if _word.endswith("*") else WORDS
            _of[_word.rstrip("*")] = _of.get(_word.rstrip("*"), 0) | _BITS[_name]
PHRASES: dict[str, list[tuple[tuple[str, ...], int]]] = {}
"""Phrases of several words by their first, the longest first; the last word may end with `*`."""
for _phrase in sorted(_PHRASES, key=len, reverse=True):
    PHRASES.setdefault(_phrase[0], []).append((_phrase, _PHRASES[_phrase]))
_DENIES, _IS = classes("negation auxiliary"), classes("copula auxiliary")


@lru_cache(maxsize=1 << 14)
def classes_of(word: str) -> int:
    """Return the classes of a word in small letters; none, 0, where it is of an open class."""
    word = word.replace("’", "'")
    if (known := WORDS.get(word)) is not None:
        return known | _stems_of(word)
    if word.endswith("n't"):
        return _DENIES
    base, apostrophe, ending = word.rpartition("'")
    if apostrophe and ending == "s":
        known = WORDS.get(base, 0)
        return known | _IS if known & _BITS["pronoun"] else known & _BITS["source"]
    if apostrophe and len(base) < 3:
        # `n'est`, `l'aire`.
        return WORDS.get(ending, 0) | (_BITS["negation"] if base == "n" else 0)
    return _stems_of(word)


def _stems_of(word: str) -> int:
    found = 0
    for end in range(3, len(word) + 1):
        found |= _STEMS.get(word[:end], 0)
    return found
