const open = { name: null, entry: null, exchange: null, turn: 0, tab: null };
const CLAMP_LINES = 16, CLAMP_CHARACTERS = 1600;

const cutText = (value) => (typeof value === "string" ? value : String(object(value).text ?? ""));

// A text as it is, folded where it is long, with how much of it is on disk only.
function prose(value, given = {}) {
  const text = cutText(value), more = object(value).more;
  const long = text.length > CLAMP_CHARACTERS || text.split("\n", CLAMP_LINES + 1).length > CLAMP_LINES;
  const body = el("pre", { class: `text ${given.class || ""}${long ? " folded" : ""}`, text });
  const left = isNumber(more) && more > 0 ? el("p", { class: "quiet" }, `${plural(more, "character")} more, in ${given.file || "the rollout's files"}`) : null;
  if (!long) return el("div", {}, body, left);
  const button = el("button", { type: "button", class: "plain unfold", "aria-expanded": "false" }, "Show all");
  button.addEventListener("click", () => {
    const folded = body.classList.toggle("folded");
    button.textContent = folded ? "Show all" : "Show less";
    button.setAttribute("aria-expanded", String(!folded));
  });
  return el("div", {}, body, button, left);
}

function fact(name, value, more) {
  return el("div", {}, el("dt", {}, name), el("dd", {}, value instanceof Node ? value : known(value), more ? el("span", { class: "quiet" }, ` ${more}`) : null));
}

async function showRollout(name, exchange) {
  const turn = ++open.turn, entry = byName.get(name), place = byId("rollout-view");
  Object.assign(open, { name, entry, exchange: null, tab: null });
  byId("job-view").hidden = true;
  place.hidden = false;
  if (!entry) {
    clear(place, crumbs(name), el("p", { class: "note" }, "This report has no rollout of that name."));
    return;
  }
  clear(place, crumbs(name), rolloutHead(entry), el("p", { class: "quiet", role: "status" }, "Reading…"));
  window.scrollTo(0, 0);
  place.querySelector("h2").focus({ preventScroll: true });
  let detail;
  try {
    detail = await detailOf(entry);
  } catch (error) {
    if (turn === open.turn) clear(place, crumbs(name), rolloutHead(entry), el("p", { class: "note" }, `What this rollout holds cannot be shown: ${error.message}`));
    return;
  }
  if (turn !== open.turn) return;
  clear(place, crumbs(name), rolloutHead(entry), ...rolloutBody(entry, detail || {}));
  place.querySelector("h2").focus({ preventScroll: true });
  place.dataset.ready = name;
  if (exchange !== null) showExchange(exchange);
}

function crumbs(name) {
  const at = view.rows.findIndex((entry) => entry.name === name);
  const step = (by, label, text) => {
    const next = at < 0 ? undefined : view.rows[at + by];
    return el("button", { type: "button", class: "plain", disabled: !next, "aria-label": label, on: { click: () => next && openRollout(next.name) } }, text);
  };
  return el("nav", { class: "crumbs", "aria-label": "Rollouts" },
    el("button", { type: "button", class: "plain", id: "back", on: { click: closeRollout } }, "← All rollouts ", el("kbd", {}, "Esc")),
    el("span", { class: "quiet" }, at < 0 ? "" : `${grouped(at + 1)} of ${grouped(view.rows.length)}`), step(-1, "Previous rollout", "←"), step(1, "Next rollout", "→"));
}

function rolloutHead(entry) {
  const who = [entry.agent, entry.model === "none" ? null : entry.model, entry.skills === "default" ? null : `skills: ${entry.skills}`, isNumber(entry.trial) ? `trial ${entry.trial}` : null].filter(Boolean).join(" · ");
  const there = isNumber(entry.data), healthy = HEALTHY.has(entry.verdict);
  const facts = el("dl", { class: "facts" },
    fact("Reward", healthy ? reward(entry.reward) : "not counted", !healthy && isNumber(entry.reward) ? `(the verifier gave ${reward(entry.reward)})` : null),
    there && entry.calls_model ? fact("Exchanges that count", count(entry.steps)) : null,
    there ? fact("Tool calls", count(entry.tool_calls)) : null,
    there && entry.calls_model ? fact("Tokens", tokensOf(entry)) : null,
    there && entry.paid ? fact("Cost", money(entry.cost)) : null,
    there ? fact("Time", seconds(entry.seconds)) : null,
    there ? fact("Begun", clock(entry.begun)) : null);
  const review = entry.review ? el("p", { class: "note" }, `When it was run this rollout was ${verdictText(entry)}. A review of what is on disk now calls it ${verdictText(entry.review)}.`) : null;
  const said = !there ? el("p", { class: "note", text: entry.said || "Nothing is here, and no reason is recorded." }) : null;
  return el("header", { class: "rollout-head" }, el("h2", { tabindex: "-1", text: entry.task }), el("p", {}, badge(entry), " ", el("span", { text: who })), el("p", { class: "quiet mono", text: entry.name }), facts, review, said);
}

function rolloutBody(entry, detail) {
  if (detail.unread) return [el("p", { class: "note fault" }, el("b", {}, "Unreadable: "), detail.unread)];
  if (!detail.name) return [];
  const faults = list(detail.faults).map((fault) => el("div", { class: "note fault" }, el("b", {}, `${String(fault.what).replace("_", " ")}${fault.category ? ` (${fault.category})` : ""}`), prose(fault.text)));
  if (detail.error_details) faults.push(el("details", { class: "note" }, el("summary", {}, "Error details"), prose(detail.error_details, { file: "result.json" })));
  const warnings = list(detail.warnings).map((warning) => el("p", { class: "note", text: cutText(warning) }));
  if (detail.unpriced) warnings.push(el("p", { class: "note" }, `The cost is unknown: ${detail.unpriced}`));
  const findings = list(detail.findings);
  const tabs = [
    ["conversation", list(detail.exchanges).length ? `Conversation ${list(detail.exchanges).length}` : "Conversation", () => conversation(entry, detail)],
    ["findings", `Findings ${findings.length}`, () => findingsPane(detail)],
    ["verifier", "Verifier", () => filesPane(detail.verifier, "The verifier left no files.", rewardsTable(detail))],
    ["events", `Agent ${list(detail.events).length + list(detail.calls).length}`, () => eventsPane(entry, detail)],
    ["records", "Records", () => recordsPane(detail)],
  ];
  const first = list(detail.exchanges).length || !list(detail.verifier).length ? "conversation" : "verifier";
  const pane = el("div", { id: "pane", role: "tabpanel", tabindex: "0" });
  const bar = el("div", { class: "tabs", role: "tablist", "aria-label": "Parts of the rollout" });
  const choose = (key) => {
    open.tab = key;
    for (const tab of bar.children) { const on = tab.dataset.key === key; tab.setAttribute("aria-selected", String(on)); tab.setAttribute("tabindex", on ? "0" : "-1"); }
    pane.setAttribute("aria-labelledby", `tab-${key}`);
    clear(pane, ...[tabs.find(([name]) => name === key)[2]()].flat());
  };
  for (const [key, name] of tabs) bar.append(el("button", { type: "button", role: "tab", id: `tab-${key}`, "data-key": key, "aria-controls": "pane", on: { click: () => choose(key) } }, name));
  bar.addEventListener("keydown", (event) => {
    const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!by) return;
    const next = bar.children[(tabs.findIndex(([key]) => key === open.tab) + by + tabs.length) % tabs.length];
    choose(next.dataset.key);
    next.focus();
  });
  open.choose = choose;
  choose(first);
  return [...faults, ...warnings, bar, pane];
}

function conversation(entry, detail) {
  const exchanges = list(detail.exchanges);
  const charts = el("div", { class: "charts" }, waterfall(entry, detail), tokenChart(detail));
  if (!exchanges.length) {
    const prompts = list(detail.prompts).map((prompt) => turnBox("prompt", prose(prompt, { file: "prompts.json" })));
    return [charts, el("p", { class: "quiet" }, entry.calls_model ? "No exchange with a model was recorded." : "This agent calls no model."), ...prompts];
  }
  const results = new Map(), answers = new Set(), calls = new Map(list(detail.calls).map((call) => [call.id, call]));
  for (const exchange of exchanges) for (const turn of list(exchange.new)) if (turn.call && !results.has(turn.call)) results.set(turn.call, turn.text);
  const start = moment(entry.begun), placed = new Set();
  return [charts, el("ol", { class: "exchanges" }, exchanges.map((exchange) => exchangeBox(exchange, { results, answers, calls, start, placed })))];
}

const turnKey = (turn) => JSON.stringify([cutText(turn.text).trim(), list(turn.calls).map((call) => call.id)]);

function exchangeBox(exchange, all) {
  const parts = [];
  let together = 0;
  for (const turn of list(exchange.new)) {
    if (turn.role === "assistant" && all.answers.has(turnKey(turn))) continue;
    if (turn.role === "tool" && all.placed.has(turn.call)) { together += 1; continue; }
    parts.push(turnBox(turn.role, turn.role === "assistant" ? answerParts(turn, all) : prose(turn.text, { file: "trajectory/llm_trajectory.jsonl" })));
  }
  if (together) parts.push(el("p", { class: "quiet" }, `with the ${together === 1 ? "result of a call" : `results of ${together} calls`} above`));
  if (exchange.answer) {
    all.answers.add(turnKey(exchange.answer));
    parts.push(turnBox("assistant", answerParts(exchange.answer, all)));
  } else if (exchange.body !== null && exchange.body !== undefined) parts.push(turnBox("answer", prose(exchange.body, { file: "trajectory/llm_trajectory.jsonl" })));
  else parts.push(el("p", { class: "quiet" }, "There is no answer."));
  for (const note of [exchange.detail, ...list(exchange.notes)].filter(Boolean)) parts.push(el("p", { class: "note", text: note }));
  return el("li", { class: `exchange${exchange.selected ? "" : " out"}`, id: `exchange-${exchange.index}`, tabindex: "-1" }, exchangeHead(exchange, all.start), el("div", { class: "turns" }, parts));
}

function exchangeHead(exchange, start) {
  const at = moment(exchange.at), usage = exchange.usage;
  const tokens = usage ? `${count(usage.input)} in → ${count(usage.output)} out` : "tokens unknown";
  const state = exchange.selected ? null : el("span", { class: "badge out", title: "this exchange does not count" }, `excluded: ${exchange.reason || UNKNOWN}`);
  const ended = exchange.outcome === "completed" ? null : el("span", { class: "badge v-unhealthy" }, exchange.outcome, exchange.status ? ` · HTTP ${exchange.status}` : "");
  return el("div", { class: "exchange-head" },
    el("a", { class: "number", href: `#${addressOf({ rollout: open.name, exchange: exchange.index })}`, "aria-label": `Link to exchange ${exchange.index}` }, `#${exchange.index}`),
    el("span", { title: isText(exchange.at) ? exchange.at : "" }, at === null || start === null ? "time unknown" : `+${seconds((at - start) / 1000)}`),
    el("span", {}, isNumber(exchange.ms) ? `took ${seconds(exchange.ms / 1000)}` : "duration unknown"), el("span", {}, tokens),
    usage && usage.cache_read ? el("span", {}, `${count(usage.cache_read)} from cache`) : null,
    isNumber(exchange.cost) ? el("span", {}, money(exchange.cost)) : exchange.unpriced ? el("span", { title: exchange.unpriced }, "cost unknown") : null,
    exchange.role === "side" ? el("span", { class: "badge side", title: "a call beside the agent's own conversation" }, "side call") : null, ended, state);
}

const turnBox = (role, inner) => el("div", { class: `turn t-${role}` }, el("div", { class: "who" }, role), el("div", { class: "what" }, inner));

function answerParts(turn, all) {
  const parts = [];
  if (turn.reasoning) parts.push(el("p", { class: "quiet" }, `${plural(turn.reasoning, "part")} of reasoning, in trajectory/llm_trajectory.jsonl`));
  if (cutText(turn.text)) parts.push(prose(turn.text, { class: "said", file: "trajectory/llm_trajectory.jsonl" }));
  for (const call of list(turn.calls)) { all.placed.add(call.id); parts.push(callBox(call, all)); }
  if (!parts.length) parts.push(el("p", { class: "quiet" }, "(an empty answer)"));
  return parts;
}

function callBox(call, all) {
  const seen = all.calls.get(call.id), result = all.results.get(call.id);
  const from = seen ? moment(seen.begun) : null, to = seen ? moment(seen.ended) : null;
  const times = seen ? [from !== null && all.start !== null ? `+${seconds((from - all.start) / 1000)}` : null, from !== null && to !== null ? `took ${seconds((to - from) / 1000)}` : null, seen.status].filter(Boolean).join(" · ") : "";
  const shown = result ?? (seen && cutText(seen.output) ? seen.output : null);
  return el("div", { class: "call" }, el("div", { class: "call-head" }, el("code", { text: cutText(call.name) }), el("span", { class: "quiet" }, times)), argumentsOf(call.arguments),
    shown === null ? el("p", { class: "quiet" }, "no result was sent to the model") : el("div", { class: "result" }, prose(shown, { file: "trajectory/" })));
}

// Arguments are JSON mostly: then each on a line of its own, and texts as they read.
function argumentsOf(value) {
  const text = cutText(value);
  let given = null;
  try { given = object(value).more ? null : JSON.parse(text); } catch { given = null; }
  const entries = given !== null && typeof given === "object" && !Array.isArray(given) ? Object.entries(given) : null;
  if (!entries) return prose(value);
  return el("dl", { class: "arguments" }, entries.map(([name, each]) => el("div", {}, el("dt", { text: name }), el("dd", {}, prose(typeof each === "string" ? each : JSON.stringify(each, null, 1))))));
}

function findingsPane(detail) {
  const findings = [...list(detail.findings)].sort((a, b) => (a.severity === b.severity ? 0 : a.severity === "error" ? -1 : 1));
  const rows = findings.map((finding) => el("li", { class: `finding f-${finding.severity === "error" ? "error" : "warning"}` }, el("b", {}, finding.severity), " ", el("code", { text: finding.check }), finding.severity === "error" ? el("span", { class: "quiet" }, ` ${finding.category}`) : null, el("p", { text: finding.message })));
  const training = object(detail.training), audit = detail.audit;
  const idle = Object.entries(object(detail.not_applicable));
  return [
    findings.length ? el("ul", { class: "findings" }, rows) : el("p", {}, `All ${count(list(detail.ran).length)} checks that apply hold.`),
    el("p", {}, training.ready ? "This rollout may train a model." : `This rollout must not train a model: ${training.reason || UNKNOWN}.`),
    audit ? el("p", { class: "note" }, `Audit: ${audit.void ? `void, as ${audit.void}` : `${audit.verdict}, by ${audit.by}${audit.note ? `: ${audit.note}` : ""}`}`) : null,
    el("details", {}, el("summary", {}, `${plural(list(detail.ran).length, "check")} ran`), el("p", { class: "mono", text: list(detail.ran).join(", ") })),
    idle.length ? el("details", {}, el("summary", {}, `${plural(idle.length, "check")} ${idle.length === 1 ? "does" : "do"} not apply`), el("dl", { class: "arguments" }, idle.map(([name, why]) => el("div", {}, el("dt", { text: name }), el("dd", { text: why }))))) : null,
  ].filter(Boolean);
}

function rewardsTable(detail) {
  const rewards = Object.entries(object(detail.rewards));
  if (!rewards.length) return el("p", {}, "The verifier gave no reward.");
  return el("table", { class: "small" }, el("thead", {}, el("tr", {}, el("th", { scope: "col" }, "Reward"), el("th", { scope: "col", class: "number" }, "Value"))), el("tbody", {}, rewards.map(([name, value]) => el("tr", {}, el("th", { scope: "row", text: name }), el("td", { class: "number" }, isNumber(value) ? String(Number(value.toFixed(6))) : JSON.stringify(value))))));
}

function filesPane(files, none, before) {
  const shown = list(files).map((file) => el("section", { class: "file" }, el("h3", { class: "mono", text: file.name }), file.text ? prose(file.text) : el("p", { class: "quiet" }, "empty"), file.cut ? el("p", { class: "quiet" }, `Its beginning, of ${size(file.size)}.`) : null));
  return [before, ...(shown.length ? shown : [el("p", { class: "quiet" }, none)])].filter(Boolean);
}

function eventsPane(entry, detail) {
  const start = moment(entry.begun);
  const when = (at) => (moment(at) === null || start === null ? "" : `+${seconds((moment(at) - start) / 1000)}`);
  const all = [...list(detail.events).map((event) => ({ at: event.at, head: event.type, text: event.text, phase: event.phase })),
    ...list(detail.calls).map((call) => ({ at: call.begun, head: `tool call: ${cutText(call.title).slice(0, 160) || call.id}`, text: call.output, phase: call.status, took: moment(call.ended) !== null && moment(call.begun) !== null ? seconds((moment(call.ended) - moment(call.begun)) / 1000) : null }))];
  const order = all.map((event, number) => [event, number]).sort(([a, i], [b, j]) => (moment(a.at) ?? Infinity) - (moment(b.at) ?? Infinity) || i - j).map(([event]) => event);
  const rows = order.map((event) => el("li", {}, el("span", { class: "quiet when", title: isText(event.at) ? event.at : "" }, when(event.at)), el("div", {}, el("p", {}, el("b", { text: event.head }), " ", el("span", { class: "quiet" }, [event.phase, event.took].filter(Boolean).join(" · "))), cutText(event.text) ? prose(event.text, { file: "trajectory/acp_trajectory.jsonl" }) : null)));
  const more = detail.more_events ? el("p", { class: "quiet" }, `${plural(detail.more_events, "event")} more, in trajectory/acp_trajectory.jsonl`) : null;
  return [el("h3", {}, "What the agent told"), rows.length ? el("ol", { class: "events" }, rows) : el("p", { class: "quiet" }, "This agent tells no events."), more, el("h3", {}, "Its logs"), ...filesPane(detail.agent_logs, "It left no logs.")].filter(Boolean);
}

function recordsPane(detail) {
  const indented = (value) => { try { return object(value).more ? value : JSON.stringify(JSON.parse(cutText(value)), null, 2); } catch { return value; } };
  const timing = Object.entries(object(detail.timing));
  const attempts = list(detail.attempts);
  return [
    timing.length ? el("section", {}, el("h3", {}, "Time by phase"), el("table", { class: "small" }, el("tbody", {}, timing.map(([name, value]) => el("tr", {}, el("th", { scope: "row", text: name.replaceAll("_", " ") }), el("td", { class: "number" }, isNumber(value) ? seconds(value) : value === null ? known(UNKNOWN) : String(value))))))) : null,
    el("section", { class: "file" }, el("h3", { class: "mono" }, "config.json"), prose(indented(detail.config))),
    el("section", { class: "file" }, el("h3", { class: "mono" }, "result.json"), prose(indented(detail.result))),
    attempts.length ? el("p", {}, `Earlier attempts, kept and not counted: ${attempts.join(", ")}${detail.earlier ? `; of the last: ${detail.earlier}` : ""}`) : null,
    el("section", {}, el("h3", {}, "Files"), el("table", { class: "small" }, el("tbody", {}, list(detail.files).map(([name, bytes]) => el("tr", {}, el("th", { scope: "row", class: "mono", text: name }), el("td", { class: "number" }, size(bytes))))))),
  ].filter(Boolean);
}

function showExchange(number) {
  if (open.tab !== "conversation" && open.choose) open.choose("conversation");
  const box = byId(`exchange-${number}`);
  if (!box) return;
  for (const other of document.querySelectorAll(".exchange.at")) other.classList.remove("at");
  box.classList.add("at");
  open.exchange = number;
  box.scrollIntoView({ block: "start" });
  box.focus({ preventScroll: true });
  writeAddress();
}

function stepExchange(by) {
  if (open.tab !== "conversation" && open.choose) open.choose("conversation");
  const boxes = [...document.querySelectorAll(".exchange")].map((box) => Number(box.id.slice("exchange-".length)));
  if (!boxes.length) return;
  const at = boxes.indexOf(open.exchange);
  showExchange(boxes[Math.max(0, Math.min(boxes.length - 1, at < 0 ? (by > 0 ? 0 : boxes.length - 1) : at + by))]);
}
