const THEMES = ["auto", "light", "dark"];

// The address holds what is shown: filters, the open rollout and its exchange.
function addressOf(given) {
  return Object.entries(given).filter(([, value]) => value !== null && value !== undefined && value !== "").map(([name, value]) => `${name}=${encodeURIComponent(wellFormed(String(value)))}`).join("&");
}

function readAddress() {
  const found = {};
  for (const part of location.hash.slice(1).split("&")) {
    const cut = part.indexOf("=");
    if (cut < 0) continue;
    try { found[part.slice(0, cut)] = decodeURIComponent(part.slice(cut + 1).replaceAll("+", " ")); } catch { /* no address of ours */ }
  }
  return found;
}

let written = null;
function writeAddress() {
  const filters = Object.fromEntries(FILTERS.map((name) => [name, view.filters[name]]));
  const address = addressOf(open.name !== null ? { rollout: open.name, exchange: open.exchange } : { q: view.find, task: view.task, ...filters });
  written = `#${address}`;
  if (location.hash !== written) history.replaceState(null, "", written);
}

function follow() {
  if (location.hash === written) return;
  written = location.hash;
  const asked = readAddress();
  if (isText(asked.rollout)) {
    const number = asked.exchange !== undefined && /^\d+$/.test(asked.exchange) ? Number(asked.exchange) : null;
    if (asked.rollout === open.name && number !== null && byId(`exchange-${number}`)) showExchange(number);
    else showRollout(asked.rollout, number);
  } else {
    hideRollout();
    setFilters({ ...asked, find: asked.q });
  }
}

function openRollout(name) {
  location.hash = addressOf({ rollout: name });
}

function hideRollout() {
  const name = open.name;
  open.turn += 1;
  Object.assign(open, { name: null, entry: null, exchange: null, tab: null, choose: null });
  byId("rollout-view").hidden = true;
  delete byId("rollout-view").dataset.ready;
  clear(byId("rollout-view"));
  byId("job-view").hidden = false;
  return name;
}

function closeRollout() {
  const name = hideRollout();
  const filters = Object.fromEntries(FILTERS.map((key) => [key, view.filters[key]]));
  written = `#${addressOf({ q: view.find, task: view.task, ...filters })}`;
  history.pushState(null, "", written);
  const at = view.rows.findIndex((entry) => entry.name === name);
  if (at >= 0) { select(at); byId("rows").children[view.at].scrollIntoView({ block: "center" }); }
}

function setTheme(theme, keep) {
  const root = document.documentElement;
  if (theme === "auto") delete root.dataset.theme; else root.dataset.theme = theme;
  byId("theme-name").textContent = { auto: "Auto", light: "Light", dark: "Dark" }[theme];
  byId("theme").dataset.theme = theme;
  if (!keep) return;
  try { localStorage.setItem("benchflow-report-theme", theme); } catch { /* a browser that keeps nothing */ }
}

function nextTheme() {
  setTheme(THEMES[(THEMES.indexOf(byId("theme").dataset.theme) + 1) % THEMES.length], true);
}

function pressed(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || byId("help").open) return;
  const typing = event.target.closest("input, select, textarea");
  if (event.key === "Escape") {
    if (typing) typing.blur(); else if (open.name !== null) closeRollout(); else return;
    event.preventDefault();
    return;
  }
  if (typing) return;
  const opened = open.name !== null;
  const actions = {
    j: () => (opened ? stepExchange(1) : select(view.at + 1)), k: () => (opened ? stepExchange(-1) : select(view.at - 1)),
    "[": () => stepRollout(-1), "]": () => stepRollout(1), t: nextTheme, "?": () => byId("help").showModal(),
    "/": () => { if (opened) closeRollout(); byId("find").focus(); byId("find").select(); },
    Enter: () => { if (!opened && view.at >= 0 && !event.target.closest("button")) openRollout(view.rows[view.at].name); else return false; },
  };
  if (actions[event.key] && actions[event.key]() !== false) event.preventDefault();
}

function stepRollout(by) {
  const at = view.rows.findIndex((entry) => entry.name === open.name);
  if (open.name !== null && at >= 0 && view.rows[at + by]) openRollout(view.rows[at + by].name);
}

let kept = "auto";
try { kept = localStorage.getItem("benchflow-report-theme") || "auto"; } catch { /* a browser that keeps nothing */ }
setTheme(THEMES.includes(kept) ? kept : "auto", false);
byId("theme").addEventListener("click", nextTheme);
byId("help-button").addEventListener("click", () => byId("help").showModal());
document.addEventListener("keydown", pressed);
window.addEventListener("hashchange", follow);
window.addEventListener("popstate", follow);
drawHead();
drawTotals();
drawArms();
drawMatrix();
drawMetrics();
fillFilters();
const asked = readAddress();
if (isText(asked.rollout)) { drawTable(); follow(); } else setFilters({ ...asked, find: asked.q });
document.documentElement.dataset.ready = "yes";
