// Charts are boxes placed by percent, so that they fit any width; tables and lists beside them hold the same numbers.
const METRICS = [
  ["tokens", "Tokens", (entry) => entry.tokens, count, (entry) => entry.calls_model],
  ["cost", "Cost", (entry) => entry.cost, money, (entry) => entry.paid],
  ["seconds", "Time", (entry) => entry.seconds, seconds, () => true],
  ["tool_calls", "Tool calls", (entry) => entry.tool_calls, count, () => true],
];

function niceStep(top, parts) {
  const raw = top / parts;
  const power = 10 ** Math.floor(Math.log10(raw));
  return power * [1, 2, 5, 10].find((each) => each * power >= raw);
}

function ticks(top, parts = 5) {
  if (!(top > 0)) return [0];
  const step = niceStep(top, parts);
  return Array.from({ length: Math.floor(top / step + 1e-9) + 1 }, (_, number) => number * step);
}

function drawSpread(chosen) {
  const [key, , read, shown, applies] = METRICS.find(([name]) => name === chosen);
  const there = rollouts.filter((entry) => isNumber(entry.data) && applies(entry));
  const values = there.filter((entry) => isNumber(read(entry)));
  const top = values.reduce((most, entry) => Math.max(most, read(entry)), 0);
  const place = clear(byId("spread"));
  place.dataset.metric = key;
  const note = byId("spread-note");
  if (!values.length) {
    note.textContent = there.length ? `Of none of ${plural(there.length, "rollout")} this is known.` : "No rollout here takes any.";
    return;
  }
  for (const arm of arms()) {
    const mine = values.filter((entry) => armOf(entry) === arm.key);
    if (!mine.length) continue;
    const sorted = mine.map(read).sort((a, b) => a - b);
    const half = sorted.length >> 1;
    const median = sorted.length % 2 ? sorted[half] : (sorted[half - 1] + sorted[half]) / 2;
    const dots = mine.map((entry, number) => el("button", {
      type: "button", tabindex: "-1", class: `dot v-${kind(entry.verdict)}`, title: `${shortTask(entry.task)}: ${shown(read(entry))}, ${verdictText(entry)}`,
      css: { left: `${top ? (100 * read(entry)) / top : 0}%`, top: `${18 + ((number * 37) % 23) * 2.8}%` }, on: { click: () => openRollout(entry.name) },
    }));
    const middle = el("span", { class: "median", title: `median ${shown(median)}`, css: { left: `${top ? (100 * median) / top : 0}%` } });
    place.append(el("div", { class: "lane" }, el("div", { class: "lane-name", text: armName(arm) }), el("div", { class: "track", "aria-hidden": "true" }, middle, dots), el("div", { class: "lane-value" }, `median ${shown(median)}`)));
  }
  const marks = ticks(top).map((value) => el("span", { css: { left: `${(100 * value) / (top || 1)}%` } }, key === "seconds" ? seconds(value) : shown(value)));
  place.append(el("div", { class: "lane axis", "aria-hidden": "true" }, el("div", { class: "lane-name" }), el("div", { class: "track" }, marks), el("div", { class: "lane-value" })));
  const unknown = there.length - values.length;
  note.textContent = unknown ? `Not drawn: ${plural(unknown, "rollout")} of which this is not known.` : "";
}

function drawMetrics() {
  const choose = (key) => {
    for (const button of byId("metrics").children) button.setAttribute("aria-pressed", String(button.dataset.key === key));
    drawSpread(key);
  };
  const used = METRICS.filter(([, , , , applies]) => rollouts.some((entry) => isNumber(entry.data) && applies(entry)));
  clear(byId("metrics"), ...used.map(([key, name]) => el("button", { type: "button", class: "plain", "data-key": key, "aria-pressed": "false", on: { click: () => choose(key) } }, name)));
  if (used.length) choose(used[0][0]);
}

function waterfall(entry, detail) {
  const bars = [];
  const add = (lane, from, to, label, type, exchange) => {
    if (from !== null && to !== null && to >= from) bars.push({ lane, from, to, label, type, exchange });
  };
  const timing = object(detail.timing);
  const begun = moment(entry.begun), agent = moment(timing.agent_started_at), done = moment(timing.agent_finished_at), verifier = moment(timing.verifier_started_at);
  add(0, begun, agent, "setup", "setup");
  add(0, agent, done, "agent", "agent");
  if (isNumber(timing.verifier) && verifier !== null) add(0, verifier, verifier + 1000 * timing.verifier, "verifier", "verifier");
  for (const exchange of list(detail.exchanges)) {
    const at = moment(exchange.at);
    if (at !== null && isNumber(exchange.ms)) add(1, at, at + exchange.ms, `exchange ${exchange.index}: ${seconds(exchange.ms / 1000)}, ${exchange.reason || exchange.outcome}`, exchange.selected ? "model" : "excluded", exchange.index);
  }
  for (const call of list(detail.calls)) add(2, moment(call.begun), moment(call.ended), `${cutText(call.title).slice(0, 120) || call.id}: ${call.status || UNKNOWN}`, call.status === "failed" ? "failed" : "tool");
  if (!bars.length) return null;
  const start = bars.reduce((least, bar) => Math.min(least, bar.from), Infinity), end = bars.reduce((most, bar) => Math.max(most, bar.to), -Infinity), span = Math.max(end - start, 1);
  const lanes = ["Phases", "Model", "Tools"].map((name, lane) => {
    const mine = bars.filter((bar) => bar.lane === lane);
    return mine.length === 0 ? null : el("div", { class: "lane" }, el("div", { class: "lane-name" }, name), el("div", { class: "track" }, mine.map((bar) => el(bar.exchange === undefined ? "span" : "button", {
      type: bar.exchange === undefined ? null : "button", tabindex: bar.exchange === undefined ? null : "-1", class: `bar b-${bar.type}`, title: `${bar.label} · ${seconds((bar.to - bar.from) / 1000)}`,
      css: { left: `${(100 * (bar.from - start)) / span}%`, width: `${(100 * (bar.to - bar.from)) / span}%` },
      on: bar.exchange === undefined ? {} : { click: () => showExchange(bar.exchange) },
    }, lane === 0 ? bar.label : null))));
  });
  const axis = el("div", { class: "lane axis" }, el("div", { class: "lane-name" }), el("div", { class: "track" }, ticks(span / 1000).map((value) => el("span", { css: { left: `${(100000 * value) / span}%` } }, `${Number(value.toFixed(3))} s`))));
  return el("figure", { class: "chart", "aria-hidden": "true" }, el("figcaption", {}, "Time"), el("div", { class: "spread falls" }, lanes, axis));
}

function tokenChart(detail) {
  const told = list(detail.exchanges).filter((exchange) => exchange.usage && isNumber(exchange.usage.input) && isNumber(exchange.usage.output));
  if (!told.length) return null;
  const top = told.reduce((most, exchange) => Math.max(most, exchange.usage.input + exchange.usage.output), 1);
  const part = (name, value) => el("span", { class: `part p-${name}`, css: { height: `${(100 * value) / top}%` } });
  const columns = told.map((exchange) => {
    const cached = Math.min(exchange.usage.cache_read || 0, exchange.usage.input);
    const cost = isNumber(exchange.cost) ? `, ${money(exchange.cost)}` : "";
    return el("button", {
      type: "button", tabindex: "-1", class: exchange.selected ? "column" : "column excluded", on: { click: () => showExchange(exchange.index) },
      title: `exchange ${exchange.index}: ${count(exchange.usage.input)} in (${count(exchange.usage.cache_read)} from cache), ${count(exchange.usage.output)} out${cost}`,
    }, part("output", exchange.usage.output), part("fresh", exchange.usage.input - cached), part("cached", cached));
  });
  const priced = told.filter((exchange) => isNumber(exchange.cost));
  const dearest = priced.reduce((most, exchange) => (most && most.cost >= exchange.cost ? most : exchange), null);
  const total = list(detail.exchanges).length;
  const legend = el("span", { class: "legend" }, ["cached", "fresh", "output"].map((name) => [el("i", { class: `key p-${name}` }), { cached: "input from cache", fresh: "input", output: "output" }[name]]));
  const said = [told.length < total ? `of ${total - told.length} of ${total} exchanges no tokens are known` : null, dearest ? `the dearest exchange is ${dearest.index}: ${money(dearest.cost)}` : null].filter(Boolean).join("; ");
  return el("figure", { class: "chart", "aria-hidden": "true" }, el("figcaption", {}, "Tokens by exchange ", legend), el("div", { class: "columns" }, el("span", { class: "top-value" }, count(top)), columns), said ? el("p", { class: "quiet" }, said) : null, costChart(priced, dearest));
}

function costChart(priced, dearest) {
  if (!dearest || !(dearest.cost > 0)) return null;
  const columns = priced.map((exchange) => el("button", {
    type: "button", tabindex: "-1", class: "column", title: `exchange ${exchange.index}: ${money(exchange.cost)}`, on: { click: () => showExchange(exchange.index) },
  }, el("span", { class: "part p-cost", css: { height: `${(100 * exchange.cost) / dearest.cost}%` } })));
  return el("div", { class: "costs" }, el("p", { class: "caption" }, "Cost by exchange"), el("div", { class: "columns low" }, el("span", { class: "top-value" }, money(dearest.cost)), columns));
}
