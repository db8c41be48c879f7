const summary = object(index.summary);

function arms() {
  const found = new Map();
  for (const arm of list(summary.arms).map(object)) {
    const key = JSON.stringify([String(arm.agent), String(arm.model), String(arm.skills)]);
    found.set(key, { ...arm, key, told: true });
  }
  for (const entry of rollouts) {
    if (!found.has(armOf(entry))) found.set(armOf(entry), { agent: entry.agent, model: entry.model, skills: entry.skills, key: armOf(entry), told: false });
  }
  return [...found.values()];
}

function drawHead() {
  const job = object(index.job);
  document.title = `${visible(job.name)} · report`;
  byId("job-name").textContent = visible(job.name);
  const first = object(list(job.runs)[0]);
  const last = object(list(job.runs).at(-1));
  const facts = [];
  if (first.started_at) facts.push(`begun ${clock(first.started_at)}`);
  if (list(job.runs).length) facts.push(last.finished_at ? `finished ${clock(last.finished_at)}` : "not finished");
  if (list(job.runs).length > 1) facts.push(plural(list(job.runs).length, "session"));
  const sandbox = object(first.settings).sandbox;
  if (isText(sandbox)) facts.push(`sandbox ${sandbox}`);
  byId("job-facts").textContent = visible(facts.join(" · "));
  clear(byId("notes"), ...list(index.notes).map((note) => el("p", { class: "note", text: note })));
  byId("footer").textContent = visible(`Written by pytest-benchflow ${index.version} from what the rollouts left on disk. Totals are those of summary.json.`);
}

function card(name, value, more, extra) {
  return el("div", { class: "card" }, el("p", { class: "card-name" }, name), el("p", { class: value.length > 9 ? "big long" : "big" }, known(value)), more ? el("p", { class: "quiet" }, more) : null, extra);
}

function drawTotals() {
  const told = object(summary.rollouts), score = object(summary.reward), tokens = object(summary.tokens), cost = object(summary.cost_usd), cells = object(summary.coverage);
  const verdicts = object(summary.verdicts);
  const paid = rollouts.some((entry) => isNumber(entry.data) && entry.paid);
  const calls = rollouts.some((entry) => isNumber(entry.data) && entry.calls_model);
  const solved = object(summary.solved), earlier = object(summary.earlier_attempts);
  const cards = [
    summary.solved ? card("Solved", isNumber(solved.count) && isNumber(solved.of) ? `${count(solved.count)} / ${count(solved.of)}` : UNKNOWN, "of all that was planned to run") : null,
    card("Reward", reward(score.mean), `mean of ${count(score.scored)} scored of ${count(score.asked)} rollouts`),
    card("Healthy", isNumber(told.healthy) && isNumber(told.asked) ? `${count(told.healthy)} / ${count(told.asked)}` : UNKNOWN, unhealthyText()),
    card("Tokens", calls ? count(tokens.total) : "none", !calls ? "no model was called" : isNumber(tokens.unknown) && tokens.unknown ? `${count(tokens.subtotal)} known; of ${plural(tokens.unknown, "rollout")} unknown` : null),
    card("Cost", paid ? money(cost.total) : "none", !paid ? "no paid model was called" : isNumber(cost.unpriced) && cost.unpriced ? `${cost.priced_subtotal > 0 ? `${money(cost.priced_subtotal)} known; ` : ""}${plural(cost.unpriced, "rollout")} unpriced` : null),
    card("Cells", isNumber(cells.planned) ? count(cells.planned) : UNKNOWN, cellsText(cells), coverageBar(verdicts, cells)),
    earlier.count ? card("Earlier attempts", count(earlier.count), `counted in no other number: ${paid ? `${money(object(earlier.cost_usd).total)}, ` : ""}${count(object(earlier.tokens).total)} tokens`) : null,
  ];
  clear(byId("totals"), ...cards);
}

function unhealthyText() {
  const parts = Object.entries(object(summary.unhealthy_categories)).map(([name, number]) => `${count(number)} ${name}`);
  return parts.length ? `unhealthy: ${parts.join(", ")}` : "no rollout is unhealthy";
}

function cellsText(cells) {
  const parts = ["healthy", "unhealthy", "missing", "skipped"].filter((name) => cells[name]).map((name) => `${count(cells[name])} ${name}`);
  return parts.length ? `planned: ${parts.join(", ")}` : null;
}

function coverageBar(verdicts, cells) {
  const parts = [...Object.keys(OUTCOMES), "unhealthy", "skipped", "missing"].map((name) => [name, name === "missing" ? cells.missing : verdicts[name]]).filter(([, number]) => isNumber(number) && number > 0);
  const said = parts.map(([name, number]) => `${count(number)} ${outcome(name)}`).join(", ");
  return parts.length ? el("div", { class: "cover", role: "img", "aria-label": said, title: said }, parts.map(([name, number]) => el("span", { class: `v-${name}`, css: { "flex-grow": String(number) } }))) : null;
}

// A sum is {total, subtotal, unknown}: no total where a part of it is not known.
function tokenSum(told) {
  if (isNumber(told)) return count(told);
  const sum = object(told);
  return isNumber(sum.total) ? count(sum.total) : isNumber(sum.subtotal) && sum.subtotal > 0 ? `${count(sum.subtotal)}+?` : UNKNOWN;
}

const tokensOf = (entry) => tokenSum({ total: entry.tokens, subtotal: entry.tokens_known });

const interval = (estimate) => (isNumber(estimate.low) && isNumber(estimate.high) ? `${reward(estimate.low)} – ${reward(estimate.high)}` : isNumber(estimate.mean) ? "one task: no interval" : "");

// How many it is over, of how many it was to be where that is more.
const someOf = (told, noun) => (isNumber(told.of) && told.of !== told.tasks ? `${count(told.tasks)} of ${plural(told.of, noun)}` : plural(told.tasks, noun));

// The chance for the most trials that is known, with over how many tasks where that is not all.
function chance(table) {
  const told = Object.entries(object(table)).map(([k, each]) => [Number(k), object(each)]).filter(([, each]) => isNumber(each.chance)).sort(([a], [b]) => a - b).at(-1);
  if (!told) return known(UNKNOWN);
  const some = isNumber(told[1].tasks) && told[1].tasks !== told[1].of ? `, ${someOf(told[1], "task")}` : "";
  return [reward(told[1].chance), el("div", { class: "quiet" }, `k = ${told[0]}${some}`)];
}


function drawArms() {
  const told = arms().filter((arm) => arm.told);
  const names = ["Agent", "Model", "Skills", "Solved", "Reward", "95 % interval", "pass@k", "pass^k", "Tokens", "Cost", "Time each"];
  const row = (arm) => {
    const solved = object(arm.solved), estimate = object(arm.reward), cost = object(arm.cost_usd), mine = rollouts.filter((entry) => armOf(entry) === arm.key && isNumber(entry.data));
    const off = ["unhealthy", "missing", "skipped"].filter((name) => solved[name]).map((name) => `${count(solved[name])} ${name}`).join(", ");
    const paid = mine.some((entry) => entry.paid), calls = mine.some((entry) => entry.calls_model);
    return el("tr", {},
      el("th", { scope: "row" }, el("span", { text: arm.agent }), versions(arm)), el("td", { text: model(String(arm.model)) }), el("td", { text: arm.skills }),
      el("td", { class: "number" }, el("b", {}, `${count(solved.count)} / ${count(solved.of)}`), off ? el("div", { class: "quiet" }, off) : null),
      el("td", { class: "number" }, known(reward(estimate.mean)), isNumber(estimate.mean) && isNumber(estimate.of) && estimate.of !== estimate.tasks ? el("div", { class: "quiet" }, someOf(estimate, "task")) : null), el("td", { class: "quiet" }, interval(estimate)),
      el("td", { class: "number" }, chance(arm.pass_at)), el("td", { class: "number" }, chance(arm.pass_all)),
      el("td", { class: "number" }, calls ? known(tokenSum(arm.tokens)) : "–"),
      el("td", { class: "number" }, !paid ? "–" : known(money(cost.total)), paid && cost.unpriced && cost.priced_subtotal > 0 ? el("div", { class: "quiet" }, `${money(cost.priced_subtotal)} known`) : null),
      el("td", { class: "number" }, known(seconds(object(arm.seconds).total))));
  };
  clear(byId("arms"), el("caption", { class: "hidden" }, "What each agent, model and skill mode came to"), el("thead", {}, el("tr", {}, names.map((name, number) => el("th", { scope: "col", class: number > 2 && number !== 5 ? "number" : null }, name)))), el("tbody", {}, told.map(row)));
  const lifts = list(summary.skill_lift).map(object).map((each) => {
    const lift = object(each.lift), spread = isNumber(lift.low) ? ` (${signed(lift.low)} to ${signed(lift.high)})` : "";
    const left = list(each.left_out).filter(isText), over = isNumber(lift.tasks) ? ` over ${someOf(lift, "task")}` : "";
    const without = left.length ? ` Without a pair of healthy rollouts: ${left.slice(0, 20).map(shortTask).join(", ")}${left.length > 20 ? ` and ${left.length - 20} more` : ""}.` : "";
    return `Skills change the reward of ${armName({ agent: each.agent, model: each.model })} by ${isNumber(lift.mean) ? signed(lift.mean) : "an unknown amount"}${spread}, paired by task${over}.${without}`;
  });
  byId("lift").textContent = visible(lifts.join("\n"));
}

function versions(arm) {
  const told = list(arm.agent_versions).map(object);
  return told.length > 1 ? el("div", { class: "quiet" }, told.map((each) => `${each.version ?? UNKNOWN}: ${plural(each.rollouts, "rollout")}`).join(", ")) : null;
}

const signed = (value) => (isNumber(value) ? `${value < 0 ? "−" : "+"}${Math.abs(value).toFixed(3)}` : UNKNOWN);

function drawMatrix() {
  const shown = arms();
  const cells = new Map();
  for (const entry of rollouts) {
    const key = JSON.stringify([entry.task, armOf(entry)]);
    if (!cells.has(key)) cells.set(key, []);
    cells.get(key).push(entry);
  }
  const tasks = [...new Set([...shown.flatMap((arm) => Object.keys(object(arm.tasks))), ...rollouts.map((entry) => entry.task)])].sort();
  const head = el("tr", {}, el("th", { scope: "col" }, "Task"), shown.map((arm) => el("th", { scope: "col", class: "arm" }, el("b", { text: arm.agent }), [arm.model === "none" ? null : arm.model, arm.skills === "default" ? null : `${arm.skills} skills`].filter(Boolean).join(" · "))));
  const body = tasks.map((task) => el("tr", {}, el("th", { scope: "row", title: task, text: shortTask(task) }), shown.map((arm) => el("td", {}, heatCell(task, arm, cells.get(JSON.stringify([task, arm.key])) || [])))));
  clear(byId("matrix"), el("caption", { class: "hidden" }, "Mean reward by task, agent, model and skills"), el("thead", {}, head), el("tbody", {}, body));
  const scale = el("span", { class: "scale", "aria-hidden": "true" }, el("i"), "0", el("span", { class: "ramp" }), "1");
  const marks = Object.keys(MARKS).filter((name) => rollouts.some((entry) => kind(entry.verdict) === name)).map((name) => el("span", {}, mark(name), ` ${outcome(name)}`));
  clear(byId("legend"), scale, ...marks);
}

function heatCell(task, arm, entries) {
  const told = Object.hasOwn(object(arm.tasks), task) ? object(arm.tasks[task]) : {}, verdicts = object(told.verdicts);
  const number = (names) => names.reduce((sum, name) => sum + (isNumber(verdicts[name]) ? verdicts[name] : 0), 0);
  const all = number(Object.keys(verdicts)), healthy = number([...HEALTHY]);
  if (!all && !entries.length) return el("span", { class: "cell none", title: "not planned" }, "·");
  const scored = isNumber(told.mean_reward);
  const state = scored ? "scored" : number(["missing"]) === all && all ? "missing" : number(["skipped"]) === all && all ? "skipped" : "unhealthy";
  const label = scored ? reward(told.mean_reward) : healthy ? "no reward" : state;
  const counted = Object.entries(verdicts).map(([name, many]) => `${many} ${outcome(name)}`).join(", ") || "not in summary.json";
  const share = scored ? Math.max(0, Math.min(1, told.mean_reward)) : 0;
  const tainted = scored && healthy < all - number(["skipped"]);
  return el("button", {
    type: "button", class: `cell ${state}${tainted ? " partly" : ""}${share > 0.77 ? " high" : share > 0.64 ? " middle" : ""}`, css: { "--share": `${Math.round(100 * share)}%` },
    "aria-label": `${task}, ${armName(arm)}: ${scored ? `mean reward ${label} of ${healthy} healthy` : label}; ${counted}`, title: `${counted}`,
    on: { click: () => filterTo({ task, arm }) },
  }, el("span", { class: "cell-value" }, label), el("span", { class: "marks" }, entries.length > 12 ? `${healthy}/${all}` : entries.map((entry) => mark(entry.verdict))));
}
