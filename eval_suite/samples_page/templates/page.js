"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const { items, rows, images, filters } = data;
  // A row: item, sample, kind, right, answer, reason, [judge's word, its raw words], finish reason, tokens, text parts.
  const [ITEM, SAMPLE, KIND, RIGHT, ANSWER, REASON, JUDGE, FINISH, TOKENS, TEXT] = Array(10).keys();
  const KINDS = ["rule: right", "rule: wrong, no judge asked", "judge: recovered", "judge: refused", "judge unclear",
    "judge failed", "no answer: none given", "no answer: cut off", "no response", "no answer: unclosed tag or box"];
  const OPEN_KINDS = new Set([4, 5, 8]);
  const LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ";
  const PLACE = "<image>";
  const ROW_HEIGHT = 74, SPARE = 8;
  // Most places drawn of one answer, most other answers, most letters of a reading that are compared.
  const MOST_PLACES = 100, MOST_OTHERS = 32, MOST_LETTERS = 400;
  const bar = document.getElementById("bar"), list = document.getElementById("list");
  const inner = document.getElementById("inner"), count = document.getElementById("count");
  const detail = document.getElementById("detail");

  // Text reaches the page only through here: as text, never as markup.
  function make(tag, className, text, ...children) {
    const node = document.createElement(tag);
    if (className) node.className = className;
    if (text !== undefined && text !== null && text !== "") node.textContent = text;
    node.append(...children);
    return node;
  }
  const number = (value) => value.toLocaleString("en-US");
  const colour = (row) => (row[RIGHT] ? "right" : OPEN_KINDS.has(row[KIND]) ? "open" : "wrong");
  const sign = (row) => (row[RIGHT] ? "✓" : OPEN_KINDS.has(row[KIND]) ? "?" : "✗");
  const flat = (text) => text.slice(0, 300).replace(/\s+/g, " ");

  // Pictures stand between the words where there are as many places as pictures, as for the model.
  const texts = (item) => [...(item.t ?? []).flat(), item.q];
  const isPlaced = (item) => item.i !== undefined && texts(item).join("\n").split(PLACE).length === item.i.length + 1;
  const withoutPlaces = (item) => (isPlaced(item) ? item.q.replaceAll(PLACE, "[image]") : item.q);

  const rowsOf = new Map();
  rows.forEach((row, at) => { if (!rowsOf.has(row[ITEM])) rowsOf.set(row[ITEM], []); rowsOf.get(row[ITEM]).push(at); });

  // ---- what is shown
  const chosen = { benchmark: "", result: "", kind: "", search: "", fields: {} };
  const benchmarks = [...new Set(items.map((item) => item.b))];
  let shown = [], selected = -1, responseOpen = true;

  function choose() {
    const words = chosen.search.trim();
    const pattern = words && new RegExp(words.replace(/[.*+?^${}()|[\]\\]/g, "\\$&"), "i");
    const wanted = Object.entries(chosen.fields).filter(([, value]) => value !== "");
    const fits = items.map((item) =>
      (!chosen.benchmark || item.b === chosen.benchmark)
      && wanted.every(([field, value]) => (item.m?.[field] ?? []).includes(value)));
    const named = pattern && items.map((item, at) => fits[at] && [item.id, item.s, ...texts(item), item.e, item.g, ...(item.c ?? [])]
      .some((text) => text && pattern.test(text)));
    shown = [];
    rows.forEach((row, at) => {
      if (!fits[row[ITEM]]) return;
      if (chosen.result && row[RIGHT] !== Number(chosen.result === "right")) return;
      if (chosen.kind !== "" && row[KIND] !== Number(chosen.kind)) return;
      if (pattern && !named[row[ITEM]] && !(row[ANSWER] && pattern.test(row[ANSWER]))
        && !row[TEXT].some((part) => typeof part === "string" && pattern.test(part))) return;
      shown.push(at);
    });
    const right = shown.reduce((sum, at) => sum + rows[at][RIGHT], 0);
    const share = shown.length ? `, ${(100 * right / shown.length).toFixed(1)}% right` : "";
    count.textContent = `${number(shown.length)} of ${number(rows.length)} responses${share}`;
    inner.style.height = `${shown.length * ROW_HEIGHT}px`;
    if (!shown.includes(selected)) { list.scrollTop = 0; select(shown[0] ?? -1, false); } else draw();
  }

  // ---- the list: only the rows in sight exist
  function draw() {
    const first = Math.max(0, Math.floor(list.scrollTop / ROW_HEIGHT) - SPARE);
    const last = Math.min(shown.length, Math.ceil((list.scrollTop + list.clientHeight) / ROW_HEIGHT) + SPARE);
    const drawn = [];
    for (let place = first; place < last; place++) drawn.push(listRow(place));
    inner.replaceChildren(...drawn);
    if (!shown.length) inner.append(make("p", "empty", "Nothing fits these filters."));
    if (document.getElementById(`row-${selected}`)) list.setAttribute("aria-activedescendant", `row-${selected}`);
    else list.removeAttribute("aria-activedescendant");
  }

  function listRow(place) {
    const at = shown[place], row = rows[at], item = items[row[ITEM]];
    // What tells rows apart comes first: a narrow list cuts the end off.
    const sample = rowsOf.get(row[ITEM]).length > 1 ? [`sample ${row[SAMPLE]}`] : [];
    const where = [KINDS[row[KIND]], item.id, ...sample, ...(benchmarks.length > 1 ? [item.b] : [])].join(" · ");
    const what = make("p", "what", "", make("b", "", row[ANSWER] === null ? "–" : flat(row[ANSWER])), ` · known ${flat(item.g)}`);
    const node = make("div", "row", "", make("span", `mark ${colour(row)}`, sign(row)),
      make("div", "", "", make("p", "where", where), make("p", "", flat(withoutPlaces(item) || item.e || "")), what));
    if (item.i && item.i[0] >= 0) node.append(picture(item.i[0], ""));
    node.id = `row-${at}`;
    node.style.top = `${place * ROW_HEIGHT}px`;
    node.setAttribute("role", "option");
    node.setAttribute("aria-selected", String(at === selected));
    node.setAttribute("aria-posinset", String(place + 1));
    node.setAttribute("aria-setsize", String(shown.length));
    node.addEventListener("click", () => select(at, true));
    return node;
  }

  function picture(place, alt) {
    const image = make("img");
    image.alt = alt;
    image.decoding = "async";
    image.src = images[place];
    return image;
  }

  function select(at, byHand) {
    selected = at;
    const place = shown.indexOf(at);
    if (place >= 0) {
      const top = place * ROW_HEIGHT;
      if (top < list.scrollTop) list.scrollTop = top;
      if (top + ROW_HEIGHT > list.scrollTop + list.clientHeight) list.scrollTop = top + ROW_HEIGHT - list.clientHeight;
    }
    draw();
    drawDetail();
    detail.scrollTop = 0;
    if (byHand && matchMedia("(max-width: 760px)").matches) detail.scrollIntoView({ block: "start" });
  }

  // ---- one response
  function drawDetail() {
    if (selected < 0) { detail.replaceChildren(); return; }
    const row = rows[selected], item = items[row[ITEM]];
    const sample = rowsOf.get(row[ITEM]).length > 1 ? ` · sample ${row[SAMPLE]}` : "";
    const head = make("div", "head", "", make("h2", "", `${item.b} · ${item.id}${sample}`),
      make("span", `pill ${colour(row)}`, row[KIND] < 2 ? KINDS[row[KIND]] : `${row[RIGHT] ? "right" : "wrong"} · ${KINDS[row[KIND]]}`), walk());
    const tags = make("p", "tags", "",
      ...Object.entries(item.m ?? {}).map(([field, values]) => make("span", "", `${field}: ${values.join(", ")}`)));
    if (item.r !== undefined) tags.append(make("span", "", `group: ${item.r}`));
    const parts = [head, tags];
    parts.push(...asked(item, row));
    // Most questions hold their options already.
    if (item.c && !item.c.every((value) => item.q.includes(isPlaced(item) ? value.replace(/<image[ _]?\d{1,4}>/g, PLACE) : value))) parts.push(make("ol", "options", "", ...item.c.map((value, index) => option(value, index, item.g))));
    if (item.e !== undefined) parts.push(make("p", "note", `The judge reads: ${item.e}`));
    parts.push(verdict(row, item), ...samplesOf(row));
    parts.push(response(row));
    detail.replaceChildren(...parts);
  }

  // ---- answers that are places: thousandths of the picture's sides, drawn over it
  function shape(tag, attributes, ...children) {
    const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
    node.append(...children);
    return node;
  }
  function placesOf(answer) {
    let found = [];
    try { found = JSON.parse(answer); } catch { return []; }
    if (!Array.isArray(found)) return [];
    const all = found.length && found.every(Number.isFinite) ? [found] : found;
    return all.slice(0, MOST_PLACES).filter((one) => Array.isArray(one) && [2, 4].includes(one.length)
      && one.every((value) => Number.isFinite(value) && value >= 0 && value <= 1000) && !(one[2] < one[0] || one[3] < one[1]));
  }
  const point = (kind) => (kind === "known" ? shape("path", { d: "M-8 0H8M0 -8V8" })
    : shape("circle", { r: kind === "other" ? 2.5 : 6 }));
  function shapes(kind, answer) {
    const group = shape("g", { class: kind });
    for (const [x, y, right, bottom] of placesOf(answer)) {
      const at = { x: `${x / 10}%`, y: `${y / 10}%` };
      group.append(right === undefined ? shape("svg", at, point(kind))
        : shape("rect", { ...at, width: `${(right - x) / 10}%`, height: `${(bottom - y) / 10}%` }));
    }
    return group;
  }
  function drawnOver(image, row, item) {
    const others = new Set(rowsOf.get(row[ITEM]).map((at) => rows[at][ANSWER]).filter((answer) => answer !== null && answer !== row[ANSWER]));
    const known = [item.g, ...(item.a ?? [])];
    const words = `Places in thousandths of the picture's width and height: known answer ${known.join(" or ")}; answer ${row[ANSWER] ?? "none"}`;
    return make("span", "drawn", "", image, shape("svg", { class: "places", role: "img", "aria-label": words },
      ...[...others].slice(0, MOST_OTHERS).map((answer) => shapes("other", answer)),
      shapes(`answer ${colour(row)}`, row[ANSWER]), ...known.map((answer) => shapes("known", answer))));
  }
  function key(kind, words, item) {
    const sign = item.f.startsWith("point") ? shape("svg", { x: 14, y: 9 }, point(kind)) : shape("rect", { x: 3, y: 4, width: 22, height: 10 });
    return make("span", "", "", shape("svg", { class: "places key", width: 28, height: 18, "aria-hidden": "true" }, shape("g", { class: kind }, sign)), words);
  }

  // ---- a reading as an edit of the known one: what it leaves out and puts in, whatever the case
  function edits(said, known) {
    const [b, a] = [said, known].map((text) => [...text.trim().replace(/\s+/g, " ")]);
    if (Math.max(a.length, b.length) > MOST_LETTERS) return [said];
    const same = (i, j) => a[i].toLowerCase() === b[j].toLowerCase();
    // Edits from places i and j on to the ends.
    const left = Array.from({ length: a.length + 1 }, (_, i) => Array.from({ length: b.length + 1 }, (_, j) => Math.max(a.length - i, b.length - j)));
    for (let i = a.length - 1; i >= 0; i--) {
      for (let j = b.length - 1; j >= 0; j--) {
        left[i][j] = Math.min(left[i + 1][j + 1] + (same(i, j) ? 0 : 1), left[i + 1][j] + 1, left[i][j + 1] + 1);
      }
    }
    const steps = [];
    const add = (kind, letter) => {
      // Changes side by side are one deletion and one insertion.
      let at = steps.length - 1;
      while (at > 0 && kind !== "same" && steps[at][0] !== "same" && steps[at][0] !== kind) at--;
      if (at >= 0 && steps[at][0] === kind) steps[at][1] += letter; else steps.push([kind, letter]);
    };
    const whole = 2 * left[0][0] > Math.max(a.length, b.length);
    for (let i = 0, j = 0; i < a.length || j < b.length;) {
      const both = i < a.length && j < b.length;
      if (!whole && both && same(i, j) && left[i][j] === left[i + 1][j + 1]) { add("same", b[j]); i++; j++; }
      else if (!whole && both && left[i][j] === left[i + 1][j + 1] + 1) { add("del", a[i]); add("ins", b[j]); i++; j++; }
      else if (i < a.length && (whole || left[i][j] === left[i + 1][j] + 1)) add("del", a[i++]);
      else add("ins", b[j++]);
    }
    return steps.map(([kind, text]) => (kind === "same" ? text : make(kind, "", text)));
  }

  // The pictures and what is said, turn by turn.
  function asked(item, row) {
    const placed = isPlaced(item);
    const pictures = (item.i ?? []).map((place, index) => place < 0
      ? make("span", "missing", "this thumbnail cannot be shown") : picture(place, `image ${index + 1} of ${item.id}`));
    const places = item.f !== undefined && pictures.length > 0 && item.i[0] >= 0;
    if (places) pictures[0] = drawnOver(pictures[0], row, item);
    const next = pictures.values();
    const said = (text) => {
      const node = make("p", placed ? "question placed" : "question");
      (placed ? text.split(PLACE) : [text]).forEach((piece, at) => {
        if (at) { const image = next.next().value; image.tabIndex = 0; node.append(image); }
        node.append(piece);
      });
      return node;
    };
    const parts = pictures.length && !placed ? [make("div", "pictures", "", ...pictures)] : [];
    if (places) parts.push(make("p", "keys", "", key(`answer ${colour(row)}`, "answer", item), key("known", "known answer", item), key("other", "other samples", item)));
    if (!item.s && !item.t) return [...parts, said(item.q)];
    const turns = texts(item).map((text, at) => make("li", "", "", make("span", "soft", at % 2 ? "Assistant" : "User"), said(text)));
    if (item.s) turns.unshift(make("li", "", "", make("span", "soft", "System"), make("p", "question", item.s)));
    return [...parts, make("ol", "turns", "", ...turns)];
  }

  const optionsOf = (answer, choices) => choices && /^[A-Z]([ ,;]+[A-Z])*$/.test(answer)
    ? [...answer].map((letter) => choices[LETTERS.indexOf(letter)]).filter((value) => value !== undefined) : [];

  function option(value, index, gold) {
    const letter = LETTERS[index] ?? String(index + 1);
    const isGold = /^[A-Z]([ ,;]+[A-Z])*$/.test(gold) && gold.includes(letter);
    return make("li", "", "", make("span", "letter", `${letter}.`), make("span", "", value),
      ...(isGold ? [make("span", "right", "known answer")] : []));
  }

  // An answer, with the options it names written out.
  function spelled(answer, item) {
    const values = optionsOf(answer, item.c).filter((value) => !isPlaced(item) || !/<image([ _]?\d{1,4})?>/.test(value));
    return values.length ? `${answer}   (${values.join("; ")})` : answer;
  }

  function walk() {
    const step = (text, title, act) => {
      const button = make("button", "", text);
      button.type = "button";
      button.title = title;
      button.addEventListener("click", act);
      return button;
    };
    const move = (by) => () => { const at = shown[shown.indexOf(selected) + by]; if (at !== undefined) select(at, true); };
    return make("span", "walk", "", step("‹", "previous response", move(-1)), step("›", "next response", move(1)),
      step("list", "back to the list", () => bar.scrollIntoView()));
  }

  function verdict(row, item) {
    const told = make("dl", "verdict");
    const add = (name, text, className) => told.append(make("dt", "", name), make("dd", className, text));
    add("known answer", item.u ? `${item.g}   (unit asked for: ${item.u})` : [spelled(item.g, item), ...(item.a ?? [])].join(" or "), "value");
    add("answer", row[ANSWER] === null ? "–" : item.d ? "" : spelled(row[ANSWER], item), "value");
    if (item.d && row[ANSWER] !== null) {
      const plain = (text) => text.trim().replace(/\s+/g, " ").toLowerCase();
      const known = [item.g, ...(item.a ?? [])].find((one) => plain(one) === plain(row[ANSWER])) ?? item.g;
      told.lastChild.append(...edits(row[ANSWER], known));
    }
    if (row[KIND] !== 8) add("rules", row[KIND] === 0 ? `right: ${row[REASON]}` : row[REASON] || "not credited");
    add("judge", row[JUDGE] === null ? "not asked" : row[JUDGE][1] && row[JUDGE][1].trim() !== row[JUDGE][0]
      ? `${row[JUDGE][0]} (“${row[JUDGE][1]}”)` : row[JUDGE][0]);
    const tokens = row[TOKENS] === null ? "" : `, ${number(row[TOKENS])} tokens`;
    add("finish reason", row[FINISH] === null ? "no response" : row[FINISH] + tokens);
    return told;
  }

  function samplesOf(row) {
    const others = rowsOf.get(row[ITEM]);
    if (others.length < 2) return [];
    const buttons = others.map((at) => {
      const button = make("button", "", `${rows[at][SAMPLE]} `, make("span", colour(rows[at]), sign(rows[at])));
      button.type = "button";
      if (at === selected) button.setAttribute("aria-current", "true");
      button.addEventListener("click", () => select(at, false));
      return button;
    });
    return [make("div", "samples", "", make("span", "soft", "samples of this item"), ...buttons)];
  }

  function response(row) {
    const [start, left, end] = row[TEXT];
    const whole = row[TEXT].reduce((sum, part) => sum + (typeof part === "number" ? part : part.length), 0);
    const box = make("details", "response", "", make("summary", "", `Response (${number(whole)} characters)`));
    box.open = responseOpen;
    box.addEventListener("toggle", () => { responseOpen = box.open; });
    box.append(make("pre", "", start ?? "There is no response."));
    if (end !== undefined) {
      box.append(make("p", "note", `… ${number(left)} characters left out here; responses.jsonl has them …`), make("pre", "", end));
    }
    return box;
  }

  // ---- the filters
  function control(name, node, className) {
    bar.insertBefore(make("label", className, name, node), className === "field" ? bar.querySelector(".search") : null);
    return node;
  }
  function menu(name, first, options, change, className) {
    const node = make("select");
    for (const [value, text] of [["", first], ...options]) {
      const entry = make("option", "", text);
      entry.value = value;
      node.append(entry);
    }
    node.addEventListener("change", () => { change(node.value); node.classList.toggle("set", node.value !== ""); choose(); });
    return control(name, node, className);
  }
  function tally(of) {
    const counts = new Map();
    for (const row of rows) counts.set(of(row), (counts.get(of(row)) ?? 0) + 1);
    return counts;
  }
  function build() {
    const byBenchmark = tally((row) => items[row[ITEM]].b), byKind = tally((row) => row[KIND]);
    if (benchmarks.length > 1) {
      menu("benchmark", "all", benchmarks.map((name) => [name, `${name} (${number(byBenchmark.get(name) ?? 0)})`]), (value) => {
        chosen.benchmark = value;
        offerFields();
      });
    }
    menu("result", "right and wrong", [["right", "right"], ["wrong", "wrong"]], (value) => { chosen.result = value; });
    menu("stage", "all", KINDS.map((name, kind) => [kind, name]).filter(([kind]) => byKind.has(kind))
      .map(([kind, name]) => [String(kind), `${name} (${number(byKind.get(kind))})`]), (value) => { chosen.kind = value; });
    const search = make("input");
    search.type = "search";
    search.placeholder = "in questions, answers, responses";
    let waiting = 0;
    search.addEventListener("input", () => {
      clearTimeout(waiting);
      waiting = setTimeout(() => { chosen.search = search.value; choose(); }, 150);
    });
    control("search", search, "search");
    const clear = make("button", "", "Clear");
    clear.type = "button";
    clear.addEventListener("click", () => {
      Object.assign(chosen, { benchmark: "", result: "", kind: "", search: "" });
      bar.reset();
      for (const node of bar.querySelectorAll(".set")) node.classList.remove("set");
      offerFields();
      choose();
    });
    bar.append(clear);
    bar.addEventListener("submit", (event) => event.preventDefault());
    document.addEventListener("keydown", (event) => {
      const typing = event.target.closest("input, select, textarea");
      if (event.key === "/" && !typing) { event.preventDefault(); search.focus(); return; }
      if (typing || event.ctrlKey || event.metaKey || event.altKey) return;
      const page = Math.max(1, Math.floor(list.clientHeight / ROW_HEIGHT) - 1);
      const steps = { j: 1, k: -1, ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -Infinity, End: Infinity };
      // Arrows scroll a response that has the focus; elsewhere they walk through the list.
      if (!(event.key in steps) || (event.key.length > 1 && detail.contains(event.target))) return;
      event.preventDefault();
      const place = Math.min(shown.length - 1, Math.max(0, shown.indexOf(selected) + steps[event.key]));
      if (shown.length) select(shown[place], false);
    });
  }
  // Fields of the benchmark chosen; of all benchmarks together those that each of them has.
  function offerFields() {
    for (const node of bar.querySelectorAll("label.field")) node.remove();
    chosen.fields = {};
    const [first, ...others] = (chosen.benchmark ? [chosen.benchmark] : benchmarks).map((name) => filters[name] ?? {});
    for (const field of Object.keys(first ?? {})) {
      if (!others.every((fields) => field in fields)) continue;
      const values = [...new Set([first, ...others].flatMap((fields) => fields[field]))];
      menu(field, "all", values.map((value) => [value, value]), (value) => { chosen.fields[field] = value; }, "field");
    }
  }

  build();
  offerFields();
  list.addEventListener("scroll", draw, { passive: true });
  addEventListener("resize", draw);
  choose();
  document.documentElement.dataset.ready = String(Math.round(performance.now()));
})();
