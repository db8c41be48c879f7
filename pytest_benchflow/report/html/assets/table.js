const PAGE = 300;
const FILTERS = ["agent", "model", "skills", "verdict", "healthy"];
const COLUMNS = [
  ["task", "Task", (entry) => shortTask(entry.task), (entry) => entry.task],
  ["agent", "Agent", (entry) => entry.agent, (entry) => entry.agent],
  ["model", "Model", (entry) => model(entry.model), (entry) => entry.model],
  ["skills", "Skills", (entry) => entry.skills, (entry) => entry.skills],
  ["trial", "Trial", (entry) => count(entry.trial), (entry) => entry.trial],
  ["verdict", "Verdict", null, (entry) => verdictText(entry)],
  ["reward", "Reward", (entry) => (HEALTHY.has(entry.verdict) ? reward(entry.reward) : "–"), (entry) => (HEALTHY.has(entry.verdict) ? entry.reward : null)],
  ["steps", "Steps", (entry) => (entry.calls_model ? count(entry.steps) : "–"), (entry) => entry.steps],
  ["tool_calls", "Calls", (entry) => (isNumber(entry.data) ? count(entry.tool_calls) : "–"), (entry) => entry.tool_calls],
  ["tokens", "Tokens", (entry) => (entry.calls_model ? tokensOf(entry) : "–"), (entry) => (entry.calls_model ? entry.tokens : null)],
  ["cost", "Cost", (entry) => (entry.paid ? money(entry.cost) : "–"), (entry) => (entry.paid ? entry.cost : null)],
  ["seconds", "Time", (entry) => (isNumber(entry.data) ? seconds(entry.seconds) : "–"), (entry) => entry.seconds],
];
const NUMBERS = new Set(["trial", "reward", "steps", "tool_calls", "tokens", "cost", "seconds"]);
const view = { filters: {}, task: null, find: "", sort: "task", down: false, shown: PAGE, rows: [], at: -1 };

function fillFilters() {
  const values = {
    agent: unique((entry) => entry.agent), model: unique((entry) => entry.model), skills: unique((entry) => entry.skills),
    verdict: [...unique((entry) => entry.verdict)], healthy: ["yes", "no"],
  };
  const words = { healthy: { yes: "healthy", no: "not healthy" } };
  for (const name of FILTERS) {
    const select = byId(`filter-${name}`);
    clear(select, el("option", { value: "" }, "all"), ...values[name].map((value) => el("option", { value }, name === "verdict" ? outcome(value) : name === "model" ? model(value) : object(words[name])[value] || value)));
    select.addEventListener("change", () => { view.filters[name] = select.value; filtersChanged(); });
  }
  byId("find").addEventListener("input", () => { view.find = byId("find").value; filtersChanged(); });
  byId("filters").addEventListener("submit", (event) => event.preventDefault());
  byId("clear").addEventListener("click", () => setFilters({}));
  byId("more").addEventListener("click", () => { view.shown += 2 * PAGE; drawTable(); });
}

const unique = (read) => [...new Set(rollouts.map(read).map(String))].sort();

function setFilters(given) {
  view.task = isText(given.task) ? given.task : null;
  view.find = given.find || "";
  byId("find").value = view.find;
  for (const name of FILTERS) {
    const select = byId(`filter-${name}`);
    select.value = isText(given[name]) && [...select.options].some((option) => option.value === given[name]) ? given[name] : "";
    view.filters[name] = select.value;
  }
  filtersChanged();
}

function filterTo({ task, arm }) {
  setFilters({ task, agent: String(arm.agent), model: String(arm.model), skills: String(arm.skills) });
  byId("rollouts-section").scrollIntoView({ block: "start" });
  if (view.rows.length) select(0);
}

function filtersChanged() {
  view.shown = PAGE;
  view.at = -1;
  drawTable();
  writeAddress();
}

function matches(entry) {
  if (view.task !== null && entry.task !== view.task) return false;
  for (const name of ["agent", "model", "skills", "verdict"]) if (view.filters[name] && String(entry[name]) !== view.filters[name]) return false;
  if (view.filters.healthy && HEALTHY.has(entry.verdict) !== (view.filters.healthy === "yes")) return false;
  const text = `${entry.task}\n${entry.name}\n${entry.said || ""}\n${entry.category || ""}`.toLowerCase();
  return view.find.toLowerCase().split(/\s+/).every((word) => text.includes(word));
}

function sorted(entries) {
  const read = COLUMNS.find(([key]) => key === view.sort)[3];
  const way = view.down ? -1 : 1;
  // What is not known comes last whichever way.
  const compare = (a, b) => {
    const [first, second] = [read(a), read(b)];
    const [gone, absent] = [first === null || first === undefined, second === null || second === undefined];
    if (gone || absent) return gone - absent;
    return way * (typeof first === "number" && typeof second === "number" ? first - second : String(first) < String(second) ? -1 : String(first) > String(second) ? 1 : 0);
  };
  return entries.map((entry, number) => [entry, number]).sort(([a, i], [b, j]) => compare(a, b) || i - j).map(([entry]) => entry);
}

function drawTable() {
  const columns = usedColumns();
  view.rows = sorted(rollouts.filter(matches));
  const head = columns.map(([key, name]) => el("th", { scope: "col", class: NUMBERS.has(key) ? "number" : null, "aria-sort": view.sort === key ? (view.down ? "descending" : "ascending") : null },
    el("button", { type: "button", class: "sort", on: { click: () => sortBy(key) } }, name, el("span", { "aria-hidden": "true" }, view.sort === key ? (view.down ? " ↓" : " ↑") : ""))));
  const body = view.rows.slice(0, view.shown).map((entry, number) => tableRow(entry, number, columns));
  clear(byId("table"), el("caption", { class: "hidden" }, "Rollouts; the name of a task opens its rollout"), el("thead", {}, el("tr", {}, head)), el("tbody", { id: "rows" }, body));
  if (!view.rows.length) byId("rows").append(el("tr", {}, el("td", { colspan: String(columns.length), class: "quiet" }, "No rollout matches. Clear the filters to see all.")));
  const only = view.task === null ? "" : ` of ${shortTask(view.task)}`;
  byId("matched").textContent = visible(`${grouped(view.rows.length)} of ${plural(rollouts.length, "rollout")}${only}`);
  const rest = view.rows.length - view.shown;
  byId("more").hidden = rest <= 0;
  byId("more").textContent = `Show ${grouped(Math.min(rest, 2 * PAGE))} more of ${grouped(Math.max(rest, 0))}`;
  markSelected();
}

// Columns that would tell no rows apart are left out.
const usedColumns = (() => {
  let found = null;
  return () => found || (found = COLUMNS.filter(([key, , shown]) => {
    if (["skills", "trial", "model"].includes(key)) return new Set(rollouts.map((entry) => String(entry[key]))).size > 1;
    return !["steps", "tokens", "cost"].includes(key) || rollouts.some((entry) => shown(entry) !== "–");
  }));
})();

function tableRow(entry, number, columns) {
  const cells = columns.map(([key, , shown]) => {
    if (key === "task") return el("th", { scope: "row" }, el("a", { href: `#${addressOf({ rollout: entry.name })}`, title: entry.name, text: shown(entry) }), entry.canary ? el("span", { class: "badge tag" }, "canary") : null);
    if (key === "verdict") {
      const review = entry.review ? el("span", { class: "doubt", title: "a review of what is on disk judges otherwise" }, `review: ${verdictText(entry.review)}`) : null;
      const found = entry.warnings ? el("span", { class: "quiet" }, plural(entry.warnings, "warning")) : null;
      return el("td", { class: "verdict", title: entry.said }, badge(entry), " ", review, found);
    }
    const value = shown(entry);
    return el("td", { class: NUMBERS.has(key) ? "number" : null }, value === UNKNOWN ? known(UNKNOWN) : value);
  });
  return el("tr", { class: `r-${kind(entry.verdict)}`, on: { click: (event) => { if (!event.target.closest("a")) { view.at = number; openRollout(entry.name); } } } }, cells);
}

function sortBy(key) {
  view.down = view.sort === key ? !view.down : NUMBERS.has(key) && key !== "trial";
  view.sort = key;
  view.at = -1;
  drawTable();
  [...byId("table").querySelectorAll("button.sort")][usedColumns().findIndex(([name]) => name === key)].focus();
}

function select(number) {
  if (!view.rows.length) return;
  view.at = Math.max(0, Math.min(view.rows.length - 1, number));
  if (view.at >= view.shown) { view.shown = view.at + PAGE; drawTable(); }
  markSelected();
  const row = byId("rows").children[view.at];
  row.scrollIntoView({ block: "nearest" });
  row.querySelector("a").focus({ preventScroll: true });
}

function markSelected() {
  [...byId("rows").children].forEach((row, number) => row.classList.toggle("selected", number === view.at));
}
