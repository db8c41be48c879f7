const byId = (id) => document.getElementById(id);
const UNKNOWN = "unknown";
const OUTCOMES = { pass: "solved", fail: "unsolved", normal_timeout: "timeout" };
const MARKS = { pass: "●", fail: "○", normal_timeout: "◔", unhealthy: "✕", missing: "?", skipped: "–" };
const HEALTHY = new Set(Object.keys(OUTCOMES));

// Everything that a rollout wrote reaches the page through here, as text: there is no way to give markup.
function el(tag, given, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(given || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "on") for (const [event, run] of Object.entries(value)) made.addEventListener(event, run);
    else if (name === "text") made.textContent = visible(value);
    else if (name === "css") for (const [property, set] of Object.entries(value)) made.style.setProperty(property, set);
    else if (/^(class|id|title|type|role|scope|colspan|tabindex|for|value|selected|hidden|disabled|open|href|aria-[a-z]+|data-[a-z]+)$/.test(name)) {
      if (name === "href" && !String(value).startsWith("#")) throw new Error("links lead inside the report only");
      made.setAttribute(name, value === true ? "" : name === "title" || name === "aria-label" ? visible(value) : String(value));
    } else throw new Error(`no attribute ${name}`);
  }
  made.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false)
    .map((child) => (child instanceof Node ? child : visible(child))));
  return made;
}

const clear = (place, ...children) => { place.replaceChildren(...children.filter(Boolean)); return place; };

// Colours of terminals say nothing here; other control characters, and those that turn or hide text, are shown.
const COLOURS = /\u001b\[[0-9;]*m/g;
const HIDDEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]/g;
// Halves of characters cannot stand in an address, and a browser shows them in its own way.
const HALVES = /[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]/g;
const wellFormed = (text) => text.replace(HALVES, "\ufffd");
function visible(text) {
  return wellFormed(String(text)).replace(/\r\n/g, "\n").replace(COLOURS, "")
    .replace(HIDDEN, (c) => `\\u${c.charCodeAt(0).toString(16).padStart(4, "0")}`);
}

const isNumber = (value) => typeof value === "number" && Number.isFinite(value);
const isText = (value) => typeof value === "string" && value !== "";
const list = (value) => (Array.isArray(value) ? value : []);
const object = (value) => (value !== null && typeof value === "object" && !Array.isArray(value) ? value : {});
const grouped = (value) => Math.trunc(value).toString().replace(/\B(?=(\d{3})+$)/g, ",");
const count = (value) => (isNumber(value) ? grouped(value) : UNKNOWN);
const reward = (value) => (isNumber(value) ? String(Number(value.toFixed(3))) : UNKNOWN);
const money = (value) => {
  if (!isNumber(value)) return UNKNOWN;
  const [whole, part] = value.toFixed(value >= 1 ? 2 : 4).split(".");
  return `$${whole.replace(/\B(?=(\d{3})+$)/g, ",")}.${part}`;
};
const seconds = (value) => {
  if (!isNumber(value)) return UNKNOWN;
  if (value < 0.0095) return `${(value * 1000).toFixed(1)} ms`;
  if (value < 60) return `${value.toFixed(value < 10 ? 2 : 1)} s`;
  const whole = Math.round(value);
  const rest = String(whole % 60).padStart(2, "0");
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${rest} s`;
  return `${Math.floor(whole / 3600)} h ${String(Math.floor(whole / 60) % 60).padStart(2, "0")} min`;
};
const size = (value) => (!isNumber(value) ? "" : value < 1000 ? `${value} B` : value < 1e6 ? `${(value / 1e3).toFixed(1)} kB` : `${(value / 1e6).toFixed(1)} MB`);
const plural = (number, noun) => `${grouped(number)} ${noun}${number === 1 ? "" : "s"}`;
const percent = (part, whole) => (whole > 0 ? `${Math.round((100 * part) / whole)} %` : UNKNOWN);
const moment = (value) => {
  const time = typeof value === "string" ? Date.parse(value) : NaN;
  return Number.isFinite(time) ? time : null;
};
const clock = (value) => {
  const time = moment(value);
  return time === null ? UNKNOWN : new Date(time).toISOString().replace("T", " ").replace(/\.\d+Z$/, " UTC");
};
const outcome = (verdict) => OUTCOMES[verdict] || verdict;
const verdictText = (entry) => outcome(entry.verdict) + (entry.category ? ` (${entry.category})` : "");
// A model of no agent, and its tokens, are nothing that is unknown.
const model = (name) => (name === "none" ? "–" : name);
const known = (value, shown) => (value === UNKNOWN ? el("span", { class: "unknown", text: UNKNOWN }) : el("span", { text: shown ?? value }));
const kind = (verdict) => (verdict in MARKS ? verdict : "unhealthy");
const mark = (verdict, title) => el("span", { class: `mark v-${kind(verdict)}`, "aria-hidden": "true", title, text: MARKS[kind(verdict)] });
const badge = (entry) => el("span", { class: `badge v-${kind(entry.verdict)}` }, mark(entry.verdict), " ", verdictText(entry));
const shortTask = (() => {
  let names = null;
  return (task) => {
    if (names === null) {
      const all = new Set(rollouts.map((entry) => entry.task));
      const short = new Set([...all].map((name) => name.slice(name.lastIndexOf("/") + 1)));
      names = short.size === all.size;
    }
    return names ? task.slice(task.lastIndexOf("/") + 1) : task;
  };
})();

const index = JSON.parse(byId("index").textContent);
const rollouts = list(index.rollouts).map((entry) => ({ ...entry, name: wellFormed(String(entry.name)), task: String(entry.task) }));
const byName = new Map(rollouts.map((entry) => [entry.name, entry]));
const armOf = (entry) => JSON.stringify([entry.agent, entry.model, entry.skills]);
const armName = (arm) => [arm.agent, arm.model, arm.skills].filter((part) => part && part !== "none" && part !== "default").join(" · ");

// Data of a rollout: in this file, or in one beside it.
const arrived = new Map();
const parsed = new Promise((resolve) => {
  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", resolve, { once: true });
  else resolve();
});
async function packedData(number) {
  if (!index.beside) {
    const at = () => byId(`data-${number}`);
    if (!at()) await parsed;
    if (!at()) throw new Error("its data is not in this file, which may have been cut off");
    return at().textContent;
  }
  if (!arrived.has(number)) {
    await new Promise((resolve, reject) => {
      const script = document.createElement("script");
      const place = `${encodeURIComponent(index.beside)}/${String(number).padStart(6, "0")}.js`;
      script.src = trusted ? trusted.createScriptURL(place) : place;
      script.addEventListener("load", resolve);
      script.addEventListener("error", () => reject(new Error(`${index.beside}/ is not beside this file`)));
      document.head.append(script);
      script.remove();
    });
  }
  const data = arrived.get(number);
  arrived.delete(number);
  if (data === undefined) throw new Error(`${index.beside}/ holds other data than this file's`);
  return data;
}
const trusted = index.beside && window.trustedTypes ? window.trustedTypes.createPolicy("report-data", {
  createScriptURL(place) {
    if (place === `${encodeURIComponent(index.beside)}/${place.slice(-9)}` && /^[0-9]{6}\.js$/.test(place.slice(-9))) return place;
    throw new TypeError("no data of this report");
  },
}) : null;
if (index.beside) window.benchflowData = (number, data) => { arrived.set(number, data); };

async function detailOf(entry) {
  if (!isNumber(entry.data)) return null;
  const packed = Uint8Array.from(atob(await packedData(entry.data)), (c) => c.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  return JSON.parse(await new Response(stream).text());
}
