(() => {
  "use strict";
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];

  // ---- a key of a legend hides its lines in every chart of the page
  const off = new Set();
  const keys = all("button.key");
  for (const key of keys) {
    key.addEventListener("click", () => {
      const what = key.dataset.of;
      if (!off.delete(what)) off.add(what);
      for (const other of keys) if (other.dataset.of === what) other.setAttribute("aria-pressed", String(!off.has(what)));
      for (const line of all("g.series")) line.classList.toggle("off", line.dataset.of.split("\n").some((one) => off.has(one)));
    });
  }

  // ---- values of a chart by keyboard and touch
  const told = document.getElementById("told");
  let open = null;
  function show(column) {
    if (open) open.classList.remove("on");
    open = column;
    if (!column) return;
    column.classList.add("on");
    told.textContent = all(".tip text", column).filter((text) => !text.closest(".off")).map((text) => text.textContent).join("; ");
  }
  for (const chart of all("svg.chart")) {
    const columns = all(".h", chart);
    if (!columns.length) continue;
    chart.setAttribute("tabindex", "0");
    chart.addEventListener("keydown", (event) => {
      const last = columns.length - 1, at = columns.indexOf(open);
      const places = { ArrowRight: Math.min(last, at + 1), ArrowLeft: at < 0 ? last : Math.max(0, at - 1), Home: 0, End: last };
      if (event.key === "Escape") show(null);
      else if (event.key in places && !event.ctrlKey && !event.metaKey && !event.altKey) show(columns[places[event.key]]);
      else return;
      event.preventDefault();
    });
    chart.addEventListener("click", (event) => {
      const column = event.target.closest(".h");
      show(column === open ? null : column);
    });
    chart.addEventListener("blur", () => { if (columns.includes(open)) show(null); });
  }

  // ---- tables sorted by a column; a row group is sorted within itself
  const value = (cell) => {
    const text = cell.dataset.value ?? cell.textContent.trim();
    const number = parseFloat(text.replace(/[,~\s]/g, "").replace("−", "-"));
    return Number.isNaN(number) ? text : number;
  };
  const unknown = (one) => one === "–" || one === "";
  const compare = (a, b) => typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b), undefined, { numeric: true });
  for (const table of all("table.sortable")) {
    const heads = all("thead th, thead td", table);
    heads.forEach((head, place) => {
      if (head.tagName !== "TH") return;
      const button = document.createElement("button");
      button.type = "button";
      button.className = "sort";
      button.append(...head.childNodes);
      head.append(button);
      button.addEventListener("click", () => {
        const way = head.getAttribute("aria-sort") === (head.classList.contains("num") ? "descending" : "ascending") ? -1 : 1;
        const sign = head.classList.contains("num") ? -way : way;
        for (const other of heads) other.removeAttribute("aria-sort");
        head.setAttribute("aria-sort", sign > 0 ? "ascending" : "descending");
        for (const body of table.tBodies) {
          const rows = all("tr:not(.group)", body);
          const by = new Map(rows.map((row) => [row, value(row.cells[place])]));
          rows.sort((a, b) => {
            const [x, y] = [by.get(a), by.get(b)];
            return unknown(x) || unknown(y) ? unknown(x) - unknown(y) : sign * compare(x, y);
          });
          body.append(...rows);
        }
      });
    });
  }

  // ---- a box that scrolls can be scrolled by keyboard
  function scrollable() {
    for (const box of all(".scroll")) {
      if (box.scrollWidth > box.clientWidth + 1) {
        box.tabIndex = 0;
        box.setAttribute("role", "region");
        box.setAttribute("aria-label", box.dataset.name ?? "table, scrolls sideways");
      } else if (box.tabIndex === 0) {
        for (const name of ["tabindex", "role", "aria-label"]) box.removeAttribute(name);
      }
    }
  }
  scrollable();
  addEventListener("resize", scrollable);
  // A link into a closed fold opens it.
  function reveal() {
    const target = location.hash.length > 1 && document.getElementById(decodeURIComponent(location.hash.slice(1)));
    for (let node = target; node; node = node.parentElement) if (node.tagName === "DETAILS") node.open = true;
    if (target) target.scrollIntoView();
  }
  addEventListener("hashchange", reveal);
  reveal();
  document.documentElement.dataset.ready = "1";
})();
