"use strict";
(() => {
  const EVERY = 2000, PAGE = 200;
  const CHARTS = {
    agreement: ["Agreement", "share of prompts on which agents vote alike in training, or answer alike greedily on a validation set", true],
    reward: ["Reward", "mean over the completions of a step", true],
    accuracy: ["Accuracy", "greedy answers to the validation sets", true],
    diversity: ["Answer diversity", "how often answers to two different prompts differ", true],
    entropy: ["Entropy", "nats per token", false],
  };
  const FLAGS = { tie: "tie", split: "split", wrong: "agree, but wrong", unparsed: "unparsed" };
  const SOURCES = { probes: "probe prompts", validation: "last evaluation", training: "training" };
  const main = document.getElementById("main"), nav = document.getElementById("nav"), live = document.getElementById("live");

  // ---- small parts. Text reaches the page only through here: as text, never as markup.
  function make(tag, className, text, ...children) {
    const node = document.createElement(tag);
    if (className) node.className = className;
    if (text !== undefined && text !== null && text !== "") node.textContent = text;
    node.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
    return node;
  }
  function shape(tag, attributes, ...children) {
    const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
    node.append(...children);
    return node;
  }
  function link(text, href, className = "") {
    const node = make("a", className, text);
    node.href = href;
    return node;
  }
  const share = (value) => (value === null || value === undefined ? "–" : value.toFixed(3));
  const number = (value) => value.toLocaleString("en-US");
  const count = (amount, word) => `${number(amount)} ${word}${amount === 1 ? "" : "s"}`;
  const when = (seconds) => new Date(seconds * 1000).toLocaleString("sv-SE", { dateStyle: "short", timeStyle: "short" });
  const flat = (text) => text.slice(0, 300).replace(/\s+/g, " ");
  const dot = (colour) => make("span", `dot b${colour % 8}`);
  function pill(text, className, title) {
    const node = make("span", `pill ${className}`, text);
    if (title) node.title = title;
    return node;
  }

  // ---- where we are: everything that is shown is in the address behind #
  function place() {
    const [path, query = ""] = location.hash.replace(/^#\/?/, "").split("?");
    return { path, asked: new URLSearchParams(query) };
  }
  function address(path, asked) {
    const query = new URLSearchParams(Object.entries(asked).flatMap(([key, value]) =>
      (Array.isArray(value) ? value : [value]).filter((one) => one !== "" && one !== null && one !== undefined).map((one) => [key, one])));
    return `#/${path}${query.size ? `?${query}` : ""}`;
  }
  // The same page with other values, without an entry of its own in the history.
  function replace(changes) {
    const { path, asked } = place();
    for (const [key, value] of Object.entries(changes)) {
      asked.delete(key);
      if (value !== "" && value !== null && value !== undefined) asked.set(key, value);
    }
    history.replaceState(null, "", `#/${path}${asked.size ? `?${asked}` : ""}`);
  }

  // ---- asking the server; what has not changed is not sent again
  const answers = new Map();
  async function ask(what, asked) {
    const url = `/api/${what}?${new URLSearchParams(asked)}`;
    const before = answers.get(url);
    const told = await fetch(url, { cache: "no-store", headers: before ? { "If-None-Match": before.tag } : {} });
    if (told.status === 304) return before.value;
    const value = await told.json();
    if (!told.ok) throw new Error(value.error ?? told.statusText);
    answers.delete(url);
    answers.set(url, { tag: told.headers.get("ETag"), value });
    if (answers.size > 40) answers.delete(answers.keys().next().value);
    return value;
  }

  // ---- charts
  // At their real width, so that letters keep their size on a narrow window.
  function chart(name, lines, wide) {
    const [title, meaning, isShare] = CHARTS[name];
    const width = Math.max(260, Math.min(wide, 700)), height = 190, left = 38, right = 8, top = 8, bottom = 22;
    const all = lines.flatMap((line) => line.points);
    const last = Math.max(1, ...all.map(([step]) => step)), first = Math.min(0, ...all.map(([step]) => step));
    const least = Math.min(0, ...all.map(([, value]) => value)), greatest = Math.max(isShare ? 1 : 1e-6, ...all.map(([, value]) => value));
    const power = 10 ** Math.floor(Math.log10((greatest - least) / 4)), each = [1, 2, 2.5, 5, 10].find((one) => one * power * 4.0001 >= greatest - least) * power;
    const low = each * Math.floor(least / each + 1e-6), high = each * Math.ceil(greatest / each - 1e-6), ticks = Math.round((high - low) / each);
    const digits = Math.max(0, -Math.floor(Math.log10(each * 1.0001)) + Number(Math.abs(each / power - 2.5) < 0.01));
    const x = (step) => left + (width - left - right) * (step - first) / (last - first);
    const y = (value) => height - bottom - (height - top - bottom) * (value - low) / (high - low);
    const path = (points) => points.map(([step, value], at) => `${at ? "L" : "M"}${x(step).toFixed(1)} ${y(value).toFixed(1)}`).join("");
    const svg = shape("svg", { class: "chart", viewBox: `0 0 ${width} ${height}`, width, height, role: "img",
      "aria-label": `${title}: ${lines.map((line) => `${line.name} ${ends(line.points)}`).join("; ")}` });
    for (let at = 0; at <= ticks; at++) {
      const value = low + at * each, label = shape("text", { x: left - 5, y: y(value) + 4, "text-anchor": "end" });
      label.textContent = digits > 4 ? value.toExponential(1) : value.toFixed(digits);
      svg.append(shape("path", { class: at ? "rule" : "base", d: `M${left} ${y(value)}H${width - right}` }), label);
    }
    for (const part of [0, 0.5, 1]) {
      const label = shape("text", { x: x(first + part * (last - first)), y: height - 6, "text-anchor": ["start", "middle", "end"][part * 2] });
      label.textContent = `${part ? "" : "step "}${number(Math.round(first + part * (last - first)))}`;
      svg.append(label);
    }
    const most = Math.max(...lines.map((line) => smoothing(line.points))), widest = Math.max(1, ...lines.map((line) => line.under ?? 0));
    for (const line of lines) {
      const own = smoothing(line.points), classes = `s${line.colour % 8}`;
      if (own > 1) svg.append(shape("path", { class: `l raw ${classes}`, d: path(line.points) }));
      const bold = shape("path", { class: `l ${classes} d${line.dash % 4}`, d: path(smooth(line.points, own)) });
      // Of curves that lie on each other all are seen.
      bold.style.setProperty("--wide", `${2 + Math.min(1.2, 4 / widest) * (line.under ?? 0)}px`);
      svg.append(bold);
      if (line.points.length === 1) svg.append(shape("circle", { class: `f${line.colour % 8}`, r: 3, cx: x(line.points[0][0]), cy: y(line.points[0][1]) }));
    }
    const legend = make("ul", "legend", "", lines.map((line) => make("li", "", "",
      shape("svg", { class: "swatch", width: 28, height: 10, "aria-hidden": "true" }, shape("path", { class: `l s${line.colour % 8} d${line.dash % 4}`, d: "M1 5H27" })),
      make("span", "", line.name), make("span", "soft", ends(line.points)))));
    const told = most > 1 ? `${meaning}; the bold line is a mean over ${most} points` : meaning;
    return make("figure", "card chart-card", "", make("figcaption", "", "", make("h3", "", title), make("p", "", told)), svg, legend);
  }
  const ends = (points) => (points.length > 1 ? `${share(points[0][1])} → ${share(points.at(-1)[1])}` : points.length ? share(points[0][1]) : "–");
  const smoothing = (points) => (points.length > 30 ? Math.round(points.length / 15) : 1);
  function smooth(points, window) {
    let sum = 0;
    return points.map(([step, value], at) => {
      sum += value - (at >= window ? points[at - window][1] : 0);
      return [step, sum / Math.min(window, at + 1)];
    });
  }
  function charts(lines) {
    const wide = main.clientWidth, columns = wide > 980 ? 3 : wide > 640 ? 2 : 1, each = (wide - 14 * (columns - 1)) / columns - 30;
    return make("div", "grid", "", Object.keys(CHARTS).map((name) => {
      const own = lines.filter((line) => line.chart === name);
      return own.length ? chart(name, own, each) : null;
    }));
  }

  // ---- all folders
  let folders = null;
  async function showFolders(asked) {
    folders = await ask("folders", {});
    const runs = folders.folders.filter((one) => one.kind === "run"), others = folders.folders.filter((one) => one.kind !== "run");
    const head = make("div", "row-head", "", make("h1", "", "Runs"));
    const search = field("search", "Search", asked.get("q") ?? "", (value) => { replace({ q: value }); fill(); });
    const compare = make("button", "", "Compare");
    compare.addEventListener("click", () => { location.hash = address("compare", { run: chosen() }); });
    head.append(search, compare);
    const body = make("tbody");
    const heads = ["", "Run", "Method", "Agents", "Step", "Agreement of votes", "Reward", "Accuracy", "Diagnosis", "Changed", "Pages"];
    const table = make("table", "runs", "", make("thead", "", "", make("tr", "", "", heads.map((text) => {
      const cell = make("th", ["Agreement of votes", "Reward", "Accuracy"].includes(text) ? "num" : "", text);
      if (!text) cell.append(make("span", "unseen", "select"));
      return cell;
    }))), body);
    const picked = new Set(asked.getAll("run"));
    const chosen = () => runs.map((one) => one.id).filter((id) => picked.has(id));
    function fill() {
      const words = (place().asked.get("q") ?? "").toLowerCase();
      const fitting = runs.filter((one) => !words || JSON.stringify([one.title, one.place, one.method, one.agents, one.models]).toLowerCase().includes(words));
      body.replaceChildren(...fitting.map((one) => runRow(one, picked, () => update())));
      if (!fitting.length) body.append(make("tr", "", "", cell("", make("p", "empty", runs.length ? "No run fits the search." : "No runs in these folders yet: mmcorl train quickstart makes one."), "", heads.length)));
      update();
    }
    function update() {
      const ids = chosen();
      compare.disabled = ids.length < 2;
      compare.textContent = ids.length ? `Compare ${ids.length} runs` : "Compare: select runs";
    }
    fill();
    const parts = [head, make("p", "lead", `in ${folders.roots.join(", ")}${folders.partly ? ": not all of it, there are too many folders" : ""}`), make("div", "card scroll", "", table)];
    parts[2].tabIndex = 0;
    parts[2].setAttribute("role", "region");
    parts[2].setAttribute("aria-label", "Runs");
    for (const [kind, title] of [["sweep", "Sweeps"], ["evaluation", "Evaluations"]]) {
      const own = others.filter((one) => one.kind === kind);
      if (own.length) parts.push(make("h2", "", title), make("ul", "folders card", "", own.map((one) => make("li", "", "",
        make("b", "", one.place), make("span", "soft", when(one.changed)), ...pages(one)))));
    }
    draw(parts, "Runs", []);
    tell(runs.filter((one) => one.state === "running").length);
  }
  const cell = (label, content, className = "", span = 1) => {
    const node = make("td", className, "", content);
    if (label) node.dataset.label = label;
    if (span > 1) node.colSpan = span;
    return node;
  };
  function titled(node, title) {
    node.title = title;
    return node;
  }
  const pages = (one) => (one.page ? [link({ run: "report", sweep: "table", evaluation: "samples" }[one.kind], one.page)] : []);
  function runRow(one, picked, changed) {
    if (one.problem) return make("tr", "", "", cell("", ""), cell("Run", [make("b", "", one.place), make("p", "down", one.problem)], "", 10));
    const box = make("input");
    box.type = "checkbox";
    box.checked = picked.has(one.id);
    box.setAttribute("aria-label", `select ${one.place}`);
    box.addEventListener("change", () => {
      if (box.checked) picked.add(one.id); else picked.delete(one.id);
      const { path, asked } = place();
      asked.delete("run");
      for (const id of picked) asked.append("run", id);
      history.replaceState(null, "", `#/${path}${asked.size ? `?${asked}` : ""}`);
      changed();
    });
    return make("tr", "", "", cell("", box, "select"),
      cell("Run", [link(one.title, address("run", { run: one.id }), "strong"), make("p", "soft", one.place)], "wide-cell"),
      cell("Method", one.method), cell("Agents", one.agents.join(", ")),
      cell("Step", [make("span", "name", `${number(one.step)}${one.steps ? ` / ${number(one.steps)}` : ""} `), statePill(one.state)]),
      titled(cell("Agreement of votes", share(one.agreement), "num"), over(one)), titled(cell("Reward", share(one.reward), "num"), over(one)),
      titled(cell("Accuracy", share(one.accuracy), "num"), "last evaluation"),
      cell("Diagnosis", diagnosis(one)), cell("Changed", when(one.changed), "name soft"), cell("Pages", pages(one), "links"));
  }
  // The steps that are the end of a run in reports as well.
  const over = (run) => (run.window > 1 ? `mean of the last ${run.window} steps` : "last step");
  const statePill = (state) => pill(state, { running: "live", finished: "done", stopped: "open" }[state] ?? "done");
  const diagnosis = (one) => (one.diagnosis.length
    ? one.diagnosis.map((found) => pill(found.kind.replaceAll("_", " ") + (found.agent ? ` · ${found.agent}` : ""), "open", found.sentence))
    : make("span", "soft", one.step ? "nothing found" : "–"));

  // ---- one run, several runs
  const named = (line) => (line.chart === "agreement" ? (line.name === "training" ? "of votes" : `on ${line.name}`)
    : [line.agent, line.name === "training" ? "" : line.name].filter(Boolean).join(", ") || "training");
  async function showRun(asked) {
    const run = await ask("run", { run: asked.get("run") ?? "" });
    const agents = run.agents, sets = [...new Set(run.curves.map((line) => line.name))];
    const lines = run.curves.map((line) => ({ ...line, name: named(line), dash: Math.max(0, sets.indexOf(line.name)),
      colour: line.agent === null ? 7 : Math.max(0, agents.indexOf(line.agent)) }));
    const facts = [["Method", run.method], ["Step", `${number(run.step)}${run.steps ? ` of ${number(run.steps)}` : ""}`],
      [`Agreement of votes, ${over(run)}`, share(run.agreement)],
      ...run.curves.filter((line) => line.chart === "agreement" && line.name !== "training").map((line) => [`Agreement on ${line.name}, last evaluation`, share(line.points.at(-1)[1])]),
      [`Reward, ${over(run)}`, share(run.reward)], ["Accuracy, last evaluation", share(run.accuracy)]];
    const parts = [
      make("div", "row-head", "", make("h1", "", run.title), statePill(run.state), ...pages(run), link("prompts", address("prompts", { run: run.id }), "button")),
      make("p", "lead", run.place),
      make("dl", "facts", "", facts.map(([name, value]) => make("div", "", "", make("dt", "", name), make("dd", "", value)))),
      make("ul", "agents", "", agents.map((name, at) => make("li", "", "", dot(at), make("span", "", name, make("span", "soft", ` ${run.models[name] ?? ""}`))))),
    ];
    if (run.diagnosis.length) parts.push(make("section", "notes", "", make("h2", "", "Diagnosis"), make("ul", "", "", run.diagnosis.map((found) =>
      make("li", "", "", make("b", "", found.kind.replaceAll("_", " ")), `: ${found.sentence}. ${found.advice.slice(0, 1).toUpperCase()}${found.advice.slice(1)}.`)))));
    for (const note of run.notes) parts.push(make("p", "small soft", note));
    if (run.behind) parts.push(make("p", "small soft", "Its logs are long and still being read."));
    if (run.damaged) parts.push(make("p", "small down", `${count(run.damaged, "damaged line")} of its logs left out`));
    parts.push(make("h2", "", "Curves"), lines.length ? charts(lines) : make("p", "empty", "No step is on record yet."));
    const config = make("details", "card", "", make("summary", "", "Settings"), make("pre", "", run.config));
    config.querySelector("pre").tabIndex = 0;
    parts.push(config);
    draw(parts, run.title, [["Prompts", address("prompts", { run: run.id })]]);
    tell(run.state === "running" ? 1 : 0);
  }
  async function showCompare(asked) {
    const told = await ask("compare", asked.getAll("run").map((id) => ["run", id]));
    const agents = [...new Set(told.runs.flatMap((run) => run.agents))];
    const titles = told.runs.map((run) => (told.runs.filter((other) => other.title === run.title).length > 1 ? run.place : run.title));
    const lines = told.runs.flatMap((run, at) => run.curves.map((line) => ({ ...line, colour: at, under: told.runs.length - 1 - at,
      name: `${titles[at]}: ${named(line)}`, dash: line.agent === null ? Number(line.name !== "training") : agents.indexOf(line.agent) })));
    const parts = [make("div", "row-head", "", make("h1", "", `${count(told.runs.length, "run")} compared`)),
      make("ul", "agents", "", told.runs.map((run, at) => make("li", "", "", dot(at), make("span", "", "", link(titles[at], address("run", { run: run.id })),
        make("span", "soft", ` ${run.method}, ${number(run.step)} steps `), statePill(run.state))))),
      make("p", "small soft", "Colours are runs, dashes are agents."),
      make("h2", "", "Curves"), charts(lines), make("h2", "", "Settings that differ")];
    const rows = told.settings.map((row) => make("tr", "", "", header(row.setting), row.values.map((value, at) => cell(titles[at], value ?? "–"))));
    const table = make("table", "settings", "", make("thead", "", "", make("tr", "", "", ["Setting", ...titles].map((text) => make("th", "", text)))), make("tbody", "", "", rows));
    const same = told.runs.length > 1 ? "None: these runs have the same settings." : "There is one run alone: select others in the list of runs.";
    parts.push(rows.length ? scroll("Settings that differ", table) : make("p", "empty", same));
    draw(parts, "Compare", []);
    tell(told.runs.filter((run) => run.state === "running").length);
  }
  function header(text) {
    const node = make("th", "", text);
    node.scope = "row";
    return node;
  }
  function scroll(label, ...children) {
    const node = make("div", "card scroll", "", ...children);
    node.tabIndex = 0;
    node.setAttribute("role", "region");
    node.setAttribute("aria-label", label);
    return node;
  }

  // ---- prompts: the list and one of them
  function field(kind, label, value, changed, choices) {
    const node = make(choices ? "select" : "input");
    if (choices) node.append(...choices.map(([key, text]) => { const one = make("option", "", text); one.value = key; return one; }));
    else { node.type = kind; node.placeholder = `${label}  /`; node.spellcheck = false; }
    node.value = value;
    node.setAttribute("aria-label", label);
    node.dataset.field = label;
    node.addEventListener(choices ? "change" : "input", () => changed(node.value));
    return node;
  }
  let prompts = null;
  async function showPrompts(asked) {
    const query = Object.fromEntries(["run", "source", "filter", "agent", "q", "offset"].map((key) => [key, asked.get(key) ?? ""]).filter(([, value]) => value));
    const told = await ask("prompts", query);
    const uid = asked.get("uid") ?? told.rows[0]?.uid;
    const one = uid === undefined ? null : await ask("prompt", { run: query.run, uid, ...(asked.get("step") ? { step: asked.get("step") } : {}) });
    if (prompts === null || prompts.run !== query.run || !main.contains(prompts.list)) buildPrompts(query.run);
    prompts.told = told;
    // A prompt may be drawn several times in training.
    const place = told.rows.findIndex((row) => row.uid === uid && (!asked.get("drawn") || String(row.step) === asked.get("drawn")));
    prompts.at = place < 0 ? told.rows.findIndex((row) => row.uid === uid) : place;
    fillBar(told, query);
    fillList(told);
    const open = new Set([...prompts.detail.querySelectorAll("details[open]")].map((node) => node.dataset.key));
    const focused = prompts.detail.contains(document.activeElement) ? document.activeElement.dataset.key : null;
    const content = one === null ? [make("p", "empty", "Nothing fits these filters.")] : promptParts(one, told.agents, open);
    prompts.detail.replaceChildren(...content);
    if (focused) prompts.detail.querySelector(`[data-key="${CSS.escape(focused)}"]`)?.focus();
    tell(told.state === "running" ? 1 : 0);
  }
  function buildPrompts(run) {
    const bar = make("form", "bar"), list = make("div", "list"), detail = make("section", "detail");
    bar.addEventListener("submit", (event) => event.preventDefault());
    list.tabIndex = 0;
    list.setAttribute("role", "listbox");
    list.setAttribute("aria-label", "Prompts");
    detail.setAttribute("aria-label", "Prompt");
    const total = make("p", "soft count");
    total.setAttribute("role", "status");
    prompts = { run, bar, list, detail, total };
    draw([make("h1", "unseen", "Prompts"), make("div", "prompts", "", make("div", "side", "", bar, total, list), detail)], "Prompts", [["Run", address("run", { run })]]);
    main.classList.add("full");
  }
  function go(changes) { replace(changes); show(); }
  function fillBar(told, query) {
    const { bar } = prompts;
    const menus = [
      ["Source", told.source, Object.entries(SOURCES).map(([key, text]) => [key, `${text} (${number(told.sources[key])})`]), (value) => go({ source: value, uid: "", drawn: "", step: "", offset: "" })],
      ["Filter", query.filter ?? "", [["", "all prompts"], ...Object.entries(FLAGS)], (value) => go({ filter: value, uid: "", drawn: "", offset: "" })],
      ["Agent", query.agent ?? "", [["", "any agent"], ...told.agents.map((name) => [name, name])], (value) => go({ agent: value, uid: "", drawn: "", offset: "" })],
    ];
    if (!bar.children.length) {
      bar.append(...menus.map(([label, value, choices, changed]) => field("", label, value, changed, choices)),
        field("search", "Search", query.q ?? "", (value) => go({ q: value, uid: "", drawn: "", offset: "" })));
      return;
    }
    for (const [label, value, choices] of menus) {
      const menu = bar.querySelector(`[data-field="${label}"]`);
      choices.forEach(([, text], at) => { if (menu.options[at] && menu.options[at].textContent !== text) menu.options[at].textContent = text; });
      menu.value = value;
    }
  }
  function fillList(told) {
    const { list, total } = prompts;
    total.textContent = `${number(told.fitting)} of ${count(told.total, "prompt")}${told.left_out ? ` (${told.left_out})` : ""}${told.behind ? ", more is being read" : ""}`;
    const top = list.scrollTop;
    const nodes = told.rows.map((row, at) => {
      const votes = Object.entries(row.agents).map(([name, agent]) => make("span", "vote", "", dot(told.agents.indexOf(name) < 0 ? 7 : told.agents.indexOf(name)),
        make("b", "", agent.vote === null ? "–" : flat(agent.vote)), mark(agent.right)));
      const node = make("div", "item", "", make("p", "where", `${row.row} · step ${number(row.step)}${row.set === "training" ? "" : ` · ${row.set}`}`),
        row.text ? make("p", "text", flat(row.text)) : null, make("p", "what", "", votes, row.gold === null ? null : make("span", "soft", `known ${flat(row.gold)}`)),
        row.flags.length ? make("p", "flags", "", row.flags.map((flag) => pill(FLAGS[flag], `small-pill ${flag}`))) : null);
      node.id = `item-${at}`;
      node.setAttribute("role", "option");
      node.setAttribute("aria-selected", String(at === prompts.at));
      node.addEventListener("click", () => pick(row));
      return node;
    });
    list.replaceChildren(...nodes);
    const moves = [];
    if (told.offset) moves.push(["earlier in the list", Math.max(0, told.offset - PAGE)]);
    if (told.offset + told.rows.length < told.fitting) moves.push(["further in the list", told.offset + PAGE]);
    prompts.side?.remove();
    prompts.side = make("p", "moves", "", moves.map(([text, offset]) => {
      const button = make("button", "", text);
      button.addEventListener("click", () => go({ offset, uid: "", drawn: "" }));
      return button;
    }));
    if (moves.length) list.after(prompts.side);
    list.scrollTop = top;
    const { at } = prompts;
    if (at >= 0) list.setAttribute("aria-activedescendant", `item-${at}`); else list.removeAttribute("aria-activedescendant");
    document.getElementById(`item-${at}`)?.scrollIntoView({ block: "nearest" });
  }
  const mark = (right) => (right === null || right === undefined ? null : make("span", right ? "up" : "down", right ? " ✓" : " ✗"));
  function pick(row) {
    if (row === undefined) return;
    replace({ uid: row.uid, drawn: prompts.told.source === "training" ? row.step : "" });
    prompts.detail.scrollTop = 0;
    show();
  }
  function walk(steps) {
    const { rows } = prompts.told;
    pick(rows[Math.min(rows.length - 1, Math.max(0, prompts.at + steps))]);
  }

  // Answers have one colour in all agents and at all steps: the known one first, then by how often they were voted for.
  function coloursOf(one) {
    const total = new Map();
    for (const line of [...one.probes, ...one.training]) {
      for (const agent of Object.values(line.agents)) {
        for (const vote of agent.votes) total.set(vote.answer, (total.get(vote.answer) ?? 0) + vote.count + (vote.right ? 1e6 : 0));
      }
    }
    return new Map([...total].sort((a, b) => b[1] - a[1]).slice(0, 6).map(([answer], at) => [answer, [2, 5, 3, 6, 4, 7][at]]));
  }
  function promptParts(one, agents, open) {
    const colours = coloursOf(one), parts = [];
    const steps = (text, by) => { const node = make("button", "", text); node.dataset.key = text; node.addEventListener("click", () => walk(by)); return node; };
    parts.push(make("div", "row-head", "", make("h2", "", one.row), one.tag ? pill(one.tag, "done") : null, steps("previous", -1), steps("next", 1)));
    parts.push(asking(one));
    if (one.choices.length) parts.push(make("ol", "options", "", one.choices.map((value) => make("li", "", value))));
    if (one.gold !== null) parts.push(make("p", "gold", "known answer ", make("b", "", one.gold)));
    if (!one.said.length) parts.push(make("p", "small soft", "Its text is not in the folder of the run, which keeps only those of probe prompts and of the gallery."));
    if (one.probes.length) parts.push(...overTime(one, agents, colours));
    if (one.evaluations.length) parts.push(...evaluated(one, agents, open));
    if (one.training.length) parts.push(...drawn(one, agents, colours, open));
    return parts;
  }
  function asking(one) {
    const pictures = one.pictures.map((href, at) => {
      const image = make("img");
      image.src = href;
      image.alt = one.pictures.length > 1 ? `image ${at + 1} of ${one.row}` : `image of ${one.row}`;
      image.addEventListener("load", () => { if (Math.max(image.naturalWidth, image.naturalHeight) <= 112) image.classList.add("tiny"); });
      return image;
    });
    if (one.places && pictures.length) pictures[0] = drawnOver(pictures[0], one.places);
    return make("div", "ask", "", pictures.length ? make("div", "pictures", "", pictures) : null, make("div", "said", "", one.said.map((said) =>
      make("div", "", "", one.said.length > 1 ? make("p", "soft small", said.role) : null, whole(said.text, "question")))));
  }
  function whole(text, className) {
    const node = make("p", className, text.text);
    if (text.left_out) node.append(make("span", "cut", ` ${number(text.left_out)} more characters`));
    return node;
  }
  function drawnOver(image, places) {
    const svg = shape("svg", { class: "places", role: "img", "aria-label": places.words });
    for (const one of places.shapes) {
      const group = shape("g", { class: `${one.kind} ${one.colour === null ? "ink" : `s${one.colour % 8}`}`, "stroke-width": one.width }), title = shape("title", {});
      title.textContent = one.title;
      group.append(title, ...one.boxes.map(([x, y, width, height]) => shape("rect", { x: `${x}%`, y: `${y}%`, width: `${width}%`, height: `${height}%` })),
        ...one.points.map(([x, y]) => shape("svg", { x: `${x}%`, y: `${y}%` }, shape("circle", { r: one.kind === "other" ? 2.5 : 6 }))));
      svg.append(group);
    }
    return make("span", "drawn", "", image, svg);
  }

  // Votes of every agent at every probe step: columns of shares, the chosen step framed, and a slider over them.
  function overTime(one, agents, colours) {
    const at = Math.max(0, one.steps.indexOf(one.at)), shown = one.probes[at];
    const slider = make("input");
    Object.assign(slider, { type: "range", min: 0, max: one.steps.length - 1, step: 1 });
    slider.value = at;
    slider.dataset.key = "slider";
    slider.setAttribute("aria-label", "step");
    slider.setAttribute("aria-valuetext", `step ${one.at}`);
    slider.addEventListener("input", () => { replace({ step: one.steps[slider.value] }); show(); });
    const ordered = [...agents.filter((name) => name in shown.agents), ...Object.keys(shown.agents).filter((name) => !agents.includes(name))];
    const columns = ordered.map((name) => {
      const agent = shown.agents[name];
      return make("div", "agent", "", make("h4", "", "", dot(Math.max(0, agents.indexOf(name))), name, agent.tie ? pill("tie", "small-pill tie") : null),
        columnsOf(one, name, at, colours), stepsOf(one), bars(agent, colours),
        ...(one.samples[name] ?? []).map((sample, k) => response(`${k + 1} of ${one.samples[name].length}`, sample)));
    });
    return [make("h3", "part", "Votes over time"),
      make("div", "slider", "", make("label", "", `step ${number(one.at ?? 0)}`), slider, make("span", "soft", `of ${number(one.steps.at(-1))}`)),
      key(colours, one), make("div", "answers", "", columns)];
  }
  function columnsOf(one, name, at, colours) {
    const width = 280, height = 84, count = one.probes.length, each = width / count;
    const svg = shape("svg", { class: "votes", preserveAspectRatio: "none", viewBox: `0 0 ${width} ${height}`, role: "img",
      "aria-label": `${name}: ${one.probes.map((line) => `step ${line.step} ${line.agents[name]?.votes[0]?.answer ?? "no vote"}`).slice(0, 40).join(", ")}` });
    one.probes.forEach((line, column) => {
      const agent = line.agents[name];
      let top = height - 2;
      if (agent) for (const vote of agent.votes) {
        const tall = (height - 4) * vote.count / Math.max(1, agent.total);
        top -= tall;
        const bar = shape("rect", { class: colours.has(vote.answer) ? `f${colours.get(vote.answer)}` : "f7 faint", x: column * each + 0.8, y: top, width: Math.max(0.6, each - 1.6), height: Math.max(0, tall - 0.6) });
        const title = shape("title", {});
        title.textContent = `step ${line.step}: ${vote.answer} (${vote.count} of ${agent.total})`;
        bar.append(title);
        svg.append(bar);
      }
      if (column === at) svg.append(shape("rect", { class: "frame", x: column * each + 0.5, y: 0.5, width: Math.max(1, each - 1), height: height - 1 }));
    });
    svg.addEventListener("click", (event) => {
      const box = svg.getBoundingClientRect(), column = Math.min(count - 1, Math.max(0, Math.floor((event.clientX - box.left) / box.width * count)));
      replace({ step: one.probes[column].step });
      show();
    });
    return svg;
  }
  // Under the columns: first, middle and last step.
  function stepsOf(one) {
    const count = one.steps.length, marked = [...new Set([0, Math.floor((count - 1) / 2), count - 1])];
    return make("div", "band-steps soft", "", marked.map((at) => {
      const node = make("span", "", `${at ? "" : "step "}${number(one.steps[at])}`);
      node.style.left = `${100 * (at + 0.5) / count}%`;
      return node;
    }));
  }
  const key = (colours, one) => make("ul", "legend", "", [...colours].map(([answer, colour]) => make("li", "", "", make("span", `block b${colour}`), make("span", "", flat(answer)),
    one.probes.some((line) => Object.values(line.agents).some((agent) => agent.votes.some((vote) => vote.answer === answer && vote.right))) ? make("span", "mark known", "known") : null)));
  function bars(agent, colours) {
    const rows = agent.votes.map((vote) => [vote.answer, vote.count, colours.has(vote.answer) ? colours.get(vote.answer) : 7, vote.right]);
    if (agent.rarer) rows.push(["other answers", agent.rarer, 7, null]);
    if (agent.none) rows.push(["no answer", agent.none, 7, null]);
    return make("ul", "bars", "", rows.map(([answer, amount, colour, right]) => {
      const fill = make("span", `bar-fill b${colour}`);
      fill.style.width = `${100 * amount / Math.max(1, agent.total)}%`;
      return make("li", "", "", make("span", "bar-answer", answer), make("span", "bar-track", "", fill), make("span", "bar-count", String(amount)),
        make("span", "bar-marks", "", right ? make("span", "mark known", "known") : null, answer === agent.label ? make("span", "mark", "label") : null));
    }));
  }
  function response(title, sample) {
    const finish = sample.finish === "length" ? pill("cut off", "small-pill open") : null;
    const text = make("pre", "", sample.text.text);
    text.tabIndex = 0;
    if (sample.text.left_out) text.append(make("span", "cut", ` ${number(sample.text.left_out)} more characters`));
    return make("div", "response", "", make("p", "soft", `${title} · `, make("b", "", sample.answer ?? "no answer"), mark(sample.right), " ", finish), text);
  }
  function fold(name, open, ...children) {
    const node = make("details", "", "", make("summary", "", name), ...children);
    node.dataset.key = name;
    node.open = open.has(name);
    return node;
  }
  function evaluated(one, agents, open) {
    const steps = [...new Set(one.evaluations.map((line) => line.step))];
    const table = make("table", "", "", make("thead", "", "", make("tr", "", "", ["Step", ...agents].map((text) => make("th", "", text)))),
      make("tbody", "", "", steps.map((step) => make("tr", "", "", header(String(step)), agents.map((name) => {
        const line = one.evaluations.find((each) => each.step === step && each.agent === name);
        return cell(name, line ? [make("b", "", line.answer ?? "no answer"), mark(line.right)] : "–");
      })))));
    const last = agents.map((name) => one.evaluations.filter((line) => line.agent === name).at(-1)).filter(Boolean);
    return [make("h3", "part", "Greedy answers"), scroll("Greedy answers", table), fold("responses of the last evaluation", open,
      make("div", "answers", "", last.map((line) => make("div", "agent", "", make("h4", "", line.agent), response(`step ${line.step}`, line)))))];
  }
  function drawn(one, agents, colours, open) {
    const parts = [make("h3", "part", "Drawn in training")];
    for (const line of one.training) {
      const seen = one.gallery.find((each) => each.step === line.step);
      parts.push(make("p", "soft small", `step ${number(line.step)}`), make("div", "answers", "", Object.entries(line.agents).map(([name, agent]) => make("div", "agent", "",
        make("h4", "", "", dot(Math.max(0, agents.indexOf(name))), name, agent.tie ? pill("tie", "small-pill tie") : null), bars(agent, colours),
        make("p", "label", "trained on ", make("b", "", agent.label ?? "no label"), mark(agent.label_right), agent.teacher ? ` from ${agent.teacher}` : ""),
        seen?.agents[name]?.text ? fold(`a completion of ${name}, step ${line.step}`, open, make("pre", "", seen.agents[name].text)) : null))));
    }
    return parts;
  }

  // ---- the frame
  function draw(parts, title, links) {
    main.classList.remove("full");
    main.replaceChildren(...parts.filter(Boolean));
    document.title = `${title} · mmcorl view`;
    nav.replaceChildren(link("Runs", "#/"), ...links.map(([text, href]) => link(text, href)));
  }
  function tell(running) { live.textContent = running ? `${count(running, "run")} training, live` : ""; live.className = running ? "live" : "soft"; }

  let asked = 0, drawnFor = "", content = "";
  async function show(poll = false) {
    const turn = ++asked, { path, asked: query } = place(), before = location.hash;
    const view = { "": showFolders, run: showRun, compare: showCompare, prompts: showPrompts }[path];
    try {
      if (poll && !(await changed(path, query))) return;
      if (turn !== asked || before !== location.hash) return;
      const kept = keep();
      if (view) await view(query); else draw([make("p", "empty", "There is no such page.")], "Not found", []);
      if (poll || drawnFor === path) restore(kept); else { scrollTo(0, 0); if (drawnFor) main.focus({ preventScroll: true }); }
      drawnFor = path;
    } catch (error) {
      if (poll && error instanceof TypeError) { live.textContent = "the server has ended"; live.className = "down"; return; }
      draw([make("h1", "", "Not shown"), make("p", "down", error.message)], "Not shown", []);
      drawnFor = "";
    }
    document.documentElement.dataset.ready = String(turn);
  }
  // Whether the server has anything new for this page.
  async function changed(path, query) {
    const questions = { "": ["folders", {}], run: ["run", { run: query.get("run") ?? "" }], compare: ["compare", query.getAll("run").map((id) => ["run", id])],
      prompts: ["prompts", Object.fromEntries(["run", "source", "filter", "agent", "q", "offset"].map((key) => [key, query.get(key) ?? ""]).filter(([, value]) => value))] }[path];
    if (!questions) return false;
    const url = `/api/${questions[0]}?${new URLSearchParams(questions[1])}`, old = answers.get(url)?.value;
    const told = await ask(...questions);
    if (live.className === "down") tell(0);
    return told !== old;
  }
  // What a page that is drawn again would lose.
  function keep() {
    const active = document.activeElement, within = main.contains(active) && main !== active;
    const all = [...main.querySelectorAll("a, button, input, select, summary, [tabindex]")];
    return { at: within && !prompts?.list?.isConnected ? all.indexOf(active) : -1, x: scrollX, y: scrollY, start: active?.selectionStart ?? null,
      open: [...main.querySelectorAll("details")].map((node) => node.open) };
  }
  function restore(kept) {
    if (kept.at >= 0) {
      const node = [...main.querySelectorAll("a, button, input, select, summary, [tabindex]")][kept.at];
      node?.focus({ preventScroll: true });
      if (kept.start !== null && node?.type === "search") node.setSelectionRange(kept.start, kept.start);
    }
    if (!prompts?.list?.isConnected) main.querySelectorAll("details").forEach((node, at) => { node.open = kept.open[at] ?? false; });
    scrollTo(kept.x, kept.y);
  }
  document.addEventListener("keydown", (event) => {
    const typing = event.target.closest("input, select, textarea");
    if (event.key === "Escape" && typing) { typing.blur(); (prompts?.list?.isConnected ? prompts.list : main).focus(); return; }
    if (typing || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "/") {
      const search = main.querySelector('input[type="search"]');
      if (search) { event.preventDefault(); search.focus(); search.select(); }
      return;
    }
    if (!prompts?.list?.isConnected) return;
    const steps = { j: 1, k: -1, ArrowDown: 1, ArrowUp: -1, Home: -Infinity, End: Infinity }[event.key];
    // Arrows scroll a response that has the focus; elsewhere they walk through the list.
    if (steps === undefined || (event.key.length > 1 && prompts.detail.contains(event.target))) return;
    event.preventDefault();
    walk(steps);
  });
  addEventListener("hashchange", () => show());
  let resized = 0;
  addEventListener("resize", () => { clearTimeout(resized); resized = setTimeout(() => { if (drawnFor === "run" || drawnFor === "compare") show(); }, 150); });
  setInterval(() => { if (!document.hidden) show(true); }, EVERY);
  show();
})();
