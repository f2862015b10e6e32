// The page of `vdapo view`. Where it is comes from the address after "#", so every view has a link. Texts of
// models and services only ever become text nodes.
"use strict";

const FACETS = {
  level: "level", split: "split", outcome: "outcome", attempt: "attempt", guided: "guided", kind: "kind",
  iteration: "iteration", verifier: "verifier", finish_reason: "finish", policy_digest: "policy",
  temperature: "temperature", env_status: "environment",
};
const NARROW = { task_id: "task", group_id: "group" };  // filters that a rollout offers
const ORDERS = {
  "": "as played", surprise: "surprise |V(s₀) − reward|", value: "V(s₀), high first", reward: "reward, low first",
  steps: "steps, most first", tokens: "tokens, most first",
};
const VERDICTS = { ok: "✓", wrong: "✗" };
const MARKS = { success: "✓", partial: "◐", failure: "✗", "not graded": "–" };
const PAGE = 50, MOST_CHIPS = 12, MOST_COLUMNS = 24;
const ARRAYS = { u1: Uint8Array, u2: Uint16Array, u4: Uint32Array, i4: Int32Array, f4: Float32Array };
const place = id => document.getElementById(id);
const number = new Intl.NumberFormat("en");
// Rewards, values and probabilities, all in one unit; what is nearly none or nearly certain with a digit more.
const percent = share => Number.isNaN(share) ? "–"
  : `${(100 * share).toFixed((share > 0 && share < 0.1) || (share > 0.9 && share < 1) ? 1 : 0)} %`;

function make(tag, attributes = {}, ...children) {
  const node = tag === "svg" || attributes.svg ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "svg" || value === false || value === undefined) continue;
    if (name === "onclick") node.addEventListener("click", value);
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.filter(child => child !== null && child !== undefined));
  return node;
}

// Where rollouts come from: the local server, or this very file.

async function ask(what, query) {
  const response = await fetch(`/api/${what}?${new URLSearchParams(query)}`);
  const said = await response.json();
  if (!response.ok) throw new Error(said.error);
  return said;
}
const asked = (what, index, rows) => ask(what, { stage: index.stage, version: index.version, rows: rows.join() });
const fromServer = {
  facts: () => ask("run", {}),
  index: stage => ask("index", { stage }),
  stepColumns: index => ask("step_columns", { stage: index.stage, version: index.version }),
  briefs: (index, rows) => asked("briefs", index, rows),
  rollouts: (index, rows) => asked("rollouts", index, rows),
  tokens: (index, rows) => asked("tokens", index, rows),
  match: (index, query) => ask("match", { stage: index.stage, version: index.version, ...query }),
  find: query => ask("find", query),
};
function fromPage(data) {
  const of = (what, index, rows) => rows.map(row => data.stages[index.stage][what][row]);
  const says = (rollout, text) => [
    ...rollout.messages.flatMap(message => [message.content, message.tool_calls]),
    rollout.rollout_id, rollout.task_id, rollout.feedback_in_context, rollout.feedback_text,
  ].some(said => said && said.toLowerCase().includes(text));
  return {
    facts: async () => data.facts,
    index: async stage => data.stages[stage],
    stepColumns: async index => data.stages[index.stage].step_columns,
    briefs: async (index, rows) => of("briefs", index, rows),
    rollouts: async (index, rows) => of("rollouts", index, rows),
    tokens: async (index, rows) => of("tokens", index, rows),
    match: async (index, { text, low, high }) => data.stages[index.stage].rollouts
      .filter(rollout => text !== undefined ? says(rollout, text.toLowerCase())
        : rollout.steps.some(step => step.value !== null && step.value >= Number(low) && step.value < Number(high)))
      .map(rollout => rollout.row),
    find: async query => {
      for (const stage of Object.keys(data.stages).filter(stage => stage === (query.stage ?? stage))) {
        const row = data.stages[stage].briefs.findIndex(brief => brief.rollout_id.startsWith(query.id));
        if (row >= 0) return { stage, row };
      }
      throw new Error("no rollout of this page has such an id");
    },
  };
}
const source = place("data") ? fromPage(JSON.parse(place("data").textContent)) : fromServer;

// The columns of a stage, and which rows pass the filters.

function decoded({ kind, data, values }) {
  const text = atob(data), bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
  return { data: new ARRAYS[kind](bytes.buffer), values };
}
const indices = new Map();
async function indexOf(stage) {
  if (!indices.has(stage)) {
    const found = await source.index(stage);
    indices.set(stage, { stage, version: found.version, rows: found.rows, columns: allDecoded(found.columns), matches: new Map() });
  }
  return indices.get(stage);
}
const allDecoded = columns => Object.fromEntries(Object.entries(columns).map(([name, column]) => [name, decoded(column)]));
const FROM_STEPS = { verifier: [], value: ["value", "surprise"], steps: ["steps"], tokens: ["tokens"] };  // and orders by them
const needsSteps = state => state.has("verifier") || Object.values(FROM_STEPS).flat().includes(state.get("sort"));
async function withSteps(index) {  // a list is there before these are
  index.more ??= source.stepColumns(index).then(columns => Object.assign(index.columns, allDecoded(columns)));
  await index.more;
}
async function matched(index, query) {
  const key = JSON.stringify(query);
  if (!index.matches.has(key)) {
    const mask = new Uint8Array(index.rows);
    for (const row of await source.match(index, query)) mask[row] = 1;
    index.matches.set(key, mask);
  }
  return index.matches.get(key);
}
async function filtered(index, state) {
  const masks = [];
  if (state.has("q")) masks.push(await matched(index, { text: state.get("q") }));
  if (state.has("low")) masks.push(await matched(index, { low: state.get("low"), high: state.get("high") ?? "2" }));
  const active = [...Object.keys(FACETS), ...Object.keys(NARROW)].filter(name => state.has(name))
    .map(name => [name, index.columns[name].data, index.columns[name].values.indexOf(state.get(name))]);
  const facets = Object.keys(FACETS).filter(name => index.columns[name]?.values.length > 1)
    .map(name => ({ name, ...index.columns[name], counts: [], rewards: [], graded: [] }));
  for (const facet of facets) for (const key of ["counts", "rewards", "graded"]) facet[key] = new Float64Array(facet.values.length);
  const rows = [], reward = index.columns.reward.data;
  for (let row = 0; row < index.rows; row++) {
    if (masks.some(mask => !mask[row])) continue;
    let missed = 0, last = "";
    for (const [name, data, wanted] of active) if (data[row] !== wanted) { missed++; last = name; }
    if (missed === 0) rows.push(row);
    if (missed > 1) continue;
    for (const facet of facets) {  // what a facet's own choice leaves out still counts for its other choices
      if (missed && last !== facet.name) continue;
      const code = facet.data[row];
      facet.counts[code]++;
      if (!Number.isNaN(reward[row])) { facet.graded[code]++; facet.rewards[code] += reward[row]; }
    }
  }
  const telling = facets.filter(({ name, counts }) => state.has(name) || counts.filter(count => count > 0).length > 1);
  return { rows: ordered(index, rows, state.get("sort")), facets: telling };
}
function ordered(index, rows, order) {
  const [value, reward, steps, tokens] = ["value", "reward", "steps", "tokens"].map(name => index.columns[name]?.data);
  const key = {
    surprise: row => -Math.abs(value[row] - reward[row]), value: row => -value[row], reward: row => reward[row],
    steps: row => -steps[row], tokens: row => -tokens[row],
  }[order];
  if (!key) return rows;
  const keys = new Float64Array(index.rows);
  for (const row of rows) keys[row] = Number.isNaN(key(row)) ? 1e9 : key(row);
  return rows.sort((a, b) => keys[a] - keys[b] || a - b);
}

// The list.

let facts, shown = { rows: [], at: -1 };
const stateNow = () => new URLSearchParams(location.hash.slice(1));
function go(changes, keep = stateNow()) {
  for (const [name, value] of Object.entries(changes)) value === null ? keep.delete(name) : keep.set(name, value);
  location.hash = keep.toString();
}
const filter = changes => go({ ...changes, page: null, id: null, view: null });
const nameOf = (facet, value) => facet === "policy_digest" ? facts.policies[value] ?? value.slice(0, 8) : value;

function stageTabs(state) {
  place("stages").replaceChildren(...facts.stages.map(({ stage, rollouts, complete }) => make("button", {
    "aria-current": stage === state.get("stage") && "page", onclick: () => go({ stage }, new URLSearchParams()),
    title: complete ? false : "not complete: the shards that are committed",
  }, stage, " ", make("small", {}, number.format(rollouts) + (complete ? "" : " so far")))));
}
function facetRow(facet, state) {
  const { name, values, counts, rewards, graded } = facet, chosen = state.get(name);
  const choices = values.map((value, code) => ({ value, code })).filter(({ value, code }) => counts[code] || value === chosen);
  const share = code => rewards[code] / graded[code];
  const words = (value, code) => `${nameOf(name, value)} · ${number.format(counts[code])} · ${percent(share(code))}`;
  let inner;
  if (values.length > MOST_CHIPS) {
    inner = make("select", {}, make("option", { value: "" }, "all"), ...choices.map(({ value, code }) =>
      make("option", { value: `=${value}`, selected: value === chosen }, words(value, code))));
    inner.addEventListener("change", () => filter({ [name]: inner.value ? inner.value.slice(1) : null }));
  } else {
    inner = make("div", {}, ...choices.map(({ value, code }) => {
      const chip = make("button", {
        class: "chip", "aria-pressed": String(value === chosen), title: `${words(value, code)} mean reward`,
        onclick: () => filter({ [name]: value === chosen ? null : value }),
      }, nameOf(name, value), " ", make("small", {}, `${number.format(counts[code])} · ${percent(share(code))}`));
      chip.style.setProperty("--share", `${100 * (share(code) || 0)}%`);
      return chip;
    }));
  }
  return make("div", { class: "facet" }, make("span", {}, FACETS[name]), inner);
}
function summary(index, state, rows) {
  const reward = index.columns.reward.data, graded = rows.filter(row => !Number.isNaN(reward[row]));
  const mean = graded.reduce((sum, row) => sum + reward[row], 0) / graded.length;
  const narrowed = Object.keys(NARROW).filter(name => state.has(name)).map(name =>
    make("button", { onclick: () => filter({ [name]: null }) }, `${NARROW[name]} ${state.get(name).slice(0, 12)} ×`));
  if (state.has("low")) narrowed.push(make("button", { onclick: () => filter({ low: null, high: null }) },
    `some V from ${percent(Number(state.get("low")))} to ${percent(Number(state.get("high") ?? "2"))} ×`));
  const any = [...state.keys()].some(name => name in FACETS || name in NARROW || ["q", "low"].includes(name));
  if (any) narrowed.push(make("button", { onclick: () => go({ stage: index.stage }, new URLSearchParams()) }, "clear all"));
  place("summary").replaceChildren(make("b", {}, number.format(rows.length)), ` of ${number.format(index.rows)} rollouts, mean reward `,
    make("b", {}, percent(mean)), ...narrowed);
}
async function list(index, state) {
  const { rows, facets } = await filtered(index, state);
  place("facets").replaceChildren(...facets.map(facet => facetRow(facet, state)));
  summary(index, state, rows);
  const pages = Math.max(1, Math.ceil(rows.length / PAGE)), page = Math.min(pages - 1, Number(state.get("page") ?? 0));
  const here = rows.slice(page * PAGE, (page + 1) * PAGE);
  const briefs = here.length ? await source.briefs(index, here) : [];
  const { outcome, level, attempt, draw, guided, steps, value } = index.columns;
  place("rows").replaceChildren(...here.map((row, at) => {
    const out = outcome.values[outcome.data[row]], v = value?.data[row] ?? NaN, count = steps?.data[row];
    return make("li", { "data-row": row, onclick: () => open(index, row) },
      make("i", { class: `mark ${out}`, title: out }, MARKS[out]),
      make("span", {}, `attempt ${attempt.values[attempt.data[row]]}, draw ${draw.values[draw.data[row]]}`,
        guided.data[row] ? ", guided" : ""),
      make("span", { class: "soft" }, `level ${level.values[level.data[row]]}`),
      make("span", { class: "soft", title: Number.isNaN(v) ? "steps" : "V before the first step" },
        Number.isNaN(v) ? (steps ? `${count} steps` : "") : `V ${percent(v)}`),
      make("span", { class: "text", title: briefs[at].rollout_id }, briefs[at].text || briefs[at].rollout_id));
  }));
  const turn = by => () => go({ page: page + by || null });
  place("pager").replaceChildren(make("button", { id: "before", disabled: page === 0, onclick: turn(-1) }, "‹ previous"),
    `page ${page + 1} of ${number.format(pages)}`, make("button", { id: "after", disabled: page + 1 >= pages, onclick: turn(1) }, "next ›"));
  shown = { rows, at: page * PAGE - 1, index };
}
async function open(index, row) {
  const [brief] = await source.briefs(index, [row]);
  go({ id: brief.rollout_id });
}
function step(by) {
  const at = shown.at + by;
  if (at < 0 || at >= shown.rows.length) return;
  const page = Math.floor(at / PAGE);
  source.briefs(shown.index, [shown.rows[at]]).then(([brief]) => go({ id: brief.rollout_id, page: page || null }));
}

// One rollout.

const outcomeOf = ({ reward, finish_reason }) =>
  reward === null ? "not graded" : finish_reason === "success" ? "success" : reward > 0 ? "partial" : "failure";
const svg = (tag, attributes, ...children) => make(tag, { svg: true, ...attributes }, ...children);

function chart(rollout, isNarrow) {
  const { steps, reward } = rollout;
  if (!steps.some(step => step.value !== null || step.measured || step.label !== null)) return null;
  const W = isNarrow ? 400 : 720, H = 170, first = steps[0].step_index, T = steps.length;
  const x = i => 38 + (i - first) * (W - 74) / T, y = v => 12 + (1 - v) * (H - 52);
  const parts = [0, 0.5, 1].flatMap(v => [svg("line", { class: "grid", x1: 38, x2: W - 20, y1: y(v), y2: y(v) }),
    svg("text", { x: 0, y: y(v) + 4 }, percent(v))]);
  const known = steps.filter(step => step.value !== null), last = known.at(-1);
  if (known.length) parts.push(svg("polyline", { class: "value", points: known.map(s => `${x(s.step_index)},${y(s.value)}`).join(" ") }));
  if (last && reward !== null) parts.push(svg("line", { class: "end", x1: x(last.step_index), y1: y(last.value), x2: x(first + T), y2: y(reward) }));
  for (const step of steps) {
    const at = x(step.step_index), next = x(step.step_index + 1);
    parts.push(svg("line", { class: `verdict ${step.verifier_status}`, x1: at + 2, x2: next - 2, y1: H - 30, y2: H - 30 },
      svg("title", {}, `step ${step.step_index}: ${step.verifier_status} ${step.verifier_message}`)));
    if (T <= 30 || step.step_index % 5 === 0) parts.push(svg("text", { x: at - 3, y: H - 12 }, String(step.step_index)));
    if (step.measured) {
      const [n, total] = step.measured, mean = total / n, error = Math.sqrt(Math.max(0, mean * (1 - mean)) / n);
      parts.push(svg("line", { class: "error", x1: at, x2: at, y1: y(Math.min(1, mean + error)), y2: y(Math.max(0, mean - error)) }),
        svg("rect", { class: "measured", x: at - 4, y: y(mean) - 4, width: 8, height: 8 },
          svg("title", {}, `state ${step.step_index}: mean reward ${percent(mean)} of ${n} continuations, bar: one standard error`)));
    }
    if (step.label !== null) parts.push(svg("rect", { class: "label", x: at - 3.5, y: y(step.label) - 3.5, width: 7, height: 7,
      transform: `rotate(45 ${at} ${y(step.label)})` }, svg("title", {}, `state ${step.step_index}: label target ${percent(step.label)}`)));
    if (step.value !== null) parts.push(svg("circle", { cx: at, cy: y(step.value), r: 4, onclick: () => reveal(rollout, step) },
      svg("title", {}, `V = ${percent(step.value)} before step ${step.step_index}`)));
  }
  if (reward !== null) parts.push(svg("text", { class: outcomeOf(rollout), x: x(first + T) - 7, y: y(reward) + 6, "font-size": 18 }, "★",
    svg("title", {}, `reward ${percent(reward)}`)));
  return make("svg", { viewBox: `0 0 ${W} ${H}`, role: "img", "aria-label": "critic's value before each step" }, ...parts);
}
function reveal(rollout, step) {
  const node = place(`s-${rollout.rollout_id}-${step.step_index}`);
  document.querySelectorAll(".step.shown").forEach(other => other.classList.remove("shown"));
  node.classList.add("shown");
  node.scrollIntoView({ block: "center", behavior: "smooth" });
}
function stepNode(rollout, step, tokens) {
  const text = tokens ? tokens.slice(step.token_start, step.token_end).map(tokenNode) : [step.text];
  const why = step.verifier_status === "unknown" ? "" : [step.verifier_code, step.verifier_message].filter(Boolean).join(": ");
  return make("div", { class: `step ${step.verifier_status}`, id: `s-${rollout.rollout_id}-${step.step_index}` },
    make("div", { class: "side", title: `verifier: ${step.verifier_status}` }, `step ${step.step_index} ${VERDICTS[step.verifier_status] ?? ""}`,
      step.value !== null ? make("b", { title: "critic's value before this step" }, `V ${percent(step.value)}`) : null,
      step.measured ? make("i", { title: `mean reward of ${step.measured[0]} fresh continuations` }, `mean ${percent(step.measured[1] / step.measured[0])}`) : null,
      step.label !== null ? make("em", { title: "label target" }, `y ${percent(step.label)}`) : null),
    make("div", { class: "body" }, make("pre", {}, ...text), why ? make("div", { class: "why" }, `${step.verifier_status}: ${why}`) : null));
}
function tokenNode([text, logprob]) {
  const node = make("span", { class: logprob === null ? "token given" : "token",
    title: logprob === null ? "not sampled, or not known" : `log-probability ${logprob.toFixed(3)}, p = ${percent(Math.exp(logprob))}` }, text);
  if (logprob !== null) node.style.setProperty("--doubt", String(Math.min(0.85, -logprob / 4)));
  return node;
}
// What a message says before the first of a rollout's own steps: a continuation may begin inside a message.
function beforeOwn(content, steps) {
  const own = steps.map(step => step.text).join("");
  return (content ?? "").endsWith(own) ? content.slice(0, content.length - own.length) : "";
}
const inherited = text => make("div", { class: "message before" },
  make("div", { class: "role" }, "before this rollout began"), make("pre", {}, text));
function dialogue(rollout, tokens) {
  const policy = rollout.messages.filter(message => message.role === "assistant").length;
  const before = policy - 1 - Math.max(-1, ...rollout.steps.map(step => step.message_index));  // of the task's own
  let own = -before;
  return rollout.messages.map(({ role, content, tool_calls, tool_call_id }) => {
    const mine = role === "assistant" ? rollout.steps.filter(step => step.message_index === own) : [];
    if (role === "assistant") own++;
    const begun = mine.length && rollout.start_step_index > 0 ? beforeOwn(content, mine) : "";
    const inner = mine.length ? [begun ? inherited(begun) : null, ...mine.map(step => stepNode(rollout, step, tokens))]
      : [make("pre", {}, [content, tool_calls && `calls ${tool_calls}`].filter(Boolean).join("\n") || " ")];
    const given = role === "assistant" && !mine.length && rollout.start_step_index > 0;
    return make("div", { class: `message ${role}${given ? " before" : ""}` },
      make("div", { class: "role" }, role, tool_call_id ? ` for call ${tool_call_id}` : "", given ? ", before this rollout began" : ""), ...inner);
  });
}
const told = (title, text) => text ? make("div", { class: "told" }, make("b", {}, title), make("pre", {}, text)) : null;
const folded = (title, node) => make("details", {}, make("summary", {}, title), node);
const pairs = rows => make("table", {}, ...rows.map(([name, value]) => make("tr", {}, make("th", {}, name), make("td", {}, value))));
const linkTo = id => make("a", { href: `#${new URLSearchParams({ id })}` }, id.slice(0, 12));

function rolloutNode(rollout, tokens, stage, isNarrow) {
  const outcome = outcomeOf(rollout), wrong = rollout.steps.find(step => step.verifier_status === "wrong");
  const words = [
    ["level", rollout.level ?? "?"], ["split", rollout.split], ["iteration", rollout.iteration], ["kind", rollout.kind],
    ["steps", rollout.steps.length], ["finish", rollout.finish_reason], ["first wrong step", wrong ? wrong.step_index : "none"],
  ];
  const events = rollout.events.map(({ turn, code, target, fields, detail }) =>
    [`turn ${turn}`, [code, target, fields.join(", "), detail].filter(Boolean).join(" · ")]);
  const details = [
    ["rollout", rollout.rollout_id], ["task", rollout.task_id], ["group", rollout.group_id],
    ["parents", make("span", {}, ...rollout.parent_rollout_ids.flatMap(id => [linkTo(id), " "]))],
    ["begins at step", rollout.start_step_index], ["reward", String(rollout.reward)], ["cost", rollout.cost], ["environment", rollout.env_status],
    ["policy", nameOf("policy_digest", rollout.policy_digest)], ["temperature, top_p, top_k", `${rollout.temperature}, ${rollout.top_p}, ${rollout.top_k}`],
    ["token budget", rollout.max_response_tokens], ["feedback by", `${rollout.feedback_source || "nobody"} ${rollout.feedback_status}`],
  ].map(([name, value]) => [name, value instanceof Node ? value : String(value)]);
  return make("section", { class: "one" },
    make("h2", {}, make("i", { class: `mark ${outcome}` }, MARKS[outcome]), `${outcome}, attempt ${rollout.attempt}, draw ${rollout.draw}`,
      rollout.guided ? ", guided" : ""),
    make("div", { class: "facts" }, ...words.map(([name, value]) => make("span", {}, `${name} `, make("b", {}, String(value)))),
      make("a", { href: `#${new URLSearchParams({ stage, id: rollout.rollout_id })}` }, rollout.rollout_id.slice(0, 12))),
    chart(rollout, isNarrow || innerWidth < 600),
    told("What it was told: feedback in the prompt", rollout.feedback_in_context),
    tokens ? folded("the prompt as the engine had it", make("pre", {}, tokens.prompt)) : null,
    tokens?.note ? make("p", { class: "soft" }, tokens.note) : null,
    ...dialogue(rollout, tokens?.tokens),
    told("What later attempts are told of this one", rollout.feedback_text),
    rollout.feedback_request ? folded("what a model was asked for feedback, and said", make("pre", {}, `${rollout.feedback_request}\n\n${rollout.feedback_answer}`)) : null,
    events.length ? folded(`events (${events.length})`, pairs(events)) : null,
    folded("ids and sampling", pairs(details)));
}
async function detail(index, state, row) {
  const attempts = state.get("view") === "attempts", withTokens = state.has("tokens"), group = index.columns.group_id;
  let rows = [row];
  if (attempts) {
    const { attempt, draw } = index.columns, place = of => attempt.data[of] * 1e6 + draw.data[of];
    rows = [];
    for (let other = 0; other < index.rows; other++) if (group.data[other] === group.data[row]) rows.push(other);
    rows.sort((a, b) => place(a) - place(b));
  }
  const others = rows.length - MOST_COLUMNS;
  rows = rows.slice(0, MOST_COLUMNS);
  const [rollouts, tokens] = await Promise.all([source.rollouts(index, rows), withTokens ? source.tokens(index, rows) : []]);
  const one = rollouts[rows.indexOf(row)] ?? rollouts[0], pressed = on => ({ "aria-pressed": String(on), class: "chip" });
  const bar = make("div", { class: "bar" },
    make("button", { id: "attempts", ...pressed(attempts), onclick: () => go({ view: attempts ? null : "attempts" }) }, "attempts side by side (g)"),
    make("button", { id: "tokens", ...pressed(withTokens), onclick: () => go({ tokens: withTokens ? null : "1" }) }, "token log-probabilities (t)"),
    make("button", { class: "chip", onclick: () => filter({ task_id: one.task_id }) }, "rollouts of its task"),
    make("button", { class: "chip", onclick: () => filter({ group_id: one.group_id }) }, "of its group"),
    others > 0 ? make("span", { class: "soft" }, `${others} more in the group`) : null);
  place("rollout").replaceChildren(bar, make("div", { class: attempts ? "columns" : "" },
    ...rollouts.map((rollout, at) => rolloutNode(rollout, tokens[at], index.stage, attempts))));
}

// From the address to the page.

let listed = "", turn = 0, opened = null;
async function render() {
  const mine = ++turn, state = stateNow(), { dataset } = document.body;
  delete dataset.ready;  // whoever drives a browser waits for it
  try {
    facts ??= await source.facts();
    document.title = `Rollouts of ${facts.run}`;
    place("title").textContent = document.title;
    let found = null;
    if (state.has("id")) found = await source.find(Object.fromEntries([...state].filter(([name]) => ["id", "stage"].includes(name))));
    if (!state.has("stage")) state.set("stage", found ? found.stage : facts.stages[0].stage);
    const index = await indexOf(state.get("stage"));
    if (needsSteps(state)) await withSteps(index);
    if (mine !== turn) return;
    stageTabs(state);
    place("pages").replaceChildren(...facts.pages.map(page => make("a", { href: page }, page.replace("/report.html", "'s report").replace(".html", ""))));
    document.body.classList.toggle("attempts", state.get("view") === "attempts" && state.has("id"));
    const wanted = new URLSearchParams(state);
    for (const name of ["id", "view", "tokens"]) wanted.delete(name);
    if (place("text") !== document.activeElement) place("text").value = state.get("q") ?? "";
    place("sort").replaceChildren(...Object.entries(ORDERS).map(([value, words]) =>
      make("option", { value, selected: value === (state.get("sort") ?? "") }, words)));
    if (listed !== wanted.toString()) await list(index, state);
    listed = wanted.toString();
    dataset.listed ??= performance.now();
    if (found) await detail(index, state, found.row);
    else place("rollout").replaceChildren(make("p", {}, "Choose a rollout of the list, or press j."));
    if (found) choose(found.row);
    arrive(state.get("id"));
    if (!index.columns.steps) {
      await withSteps(index);
      if (mine === turn) await list(index, state);
      if (mine === turn && found) choose(found.row);
    }
  } catch (error) {
    place("rollout").replaceChildren(make("p", { class: "error" }, error.message));
    indices.clear();
    listed = "";
  }
  if (mine === turn) dataset.ready = performance.now();
}
function choose(row) {
  shown.at = shown.rows.indexOf(row);
  for (const node of document.querySelectorAll("#rows li")) {
    const is = Number(node.dataset.row) === row;
    node.setAttribute("aria-selected", String(is));
    if (is) reach(node, place("rows"));
  }
}
function reach(node, list) {  // not scrollIntoView: that moves the page too, where the list is not all of it
  const { top, bottom } = node.getBoundingClientRect(), around = list.getBoundingClientRect();
  list.scrollTop += Math.min(0, top - around.top) + Math.max(0, bottom - around.bottom);
}
// On a narrow screen the rollout lies below the list: who opens one goes to it, who closes it goes back.
function arrive(id) {
  if (id === opened) return;
  opened = id;
  place("rollout").scrollTop = 0;
  place(id ? "rollout" : "list").scrollIntoView();
}
addEventListener("hashchange", render);
place("search").addEventListener("submit", event => { event.preventDefault(); place("text").blur(); filter({ q: place("text").value || null }); });
place("sort").addEventListener("change", () => filter({ sort: place("sort").value || null }));
addEventListener("keydown", event => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "Escape") { document.activeElement.blur(); go(stateNow().get("view") ? { view: null } : { id: null }); return; }
  if (/^(INPUT|SELECT|TEXTAREA)$/.test(document.activeElement.tagName)) return;
  const keys = {
    j: () => step(1), k: () => step(-1), n: () => place("after")?.click(), p: () => place("before")?.click(),
    g: () => place("attempts")?.click(), t: () => place("tokens")?.click(), "/": () => place("text").focus(),
    "?": () => place("help").toggleAttribute("open"),
  };
  if (keys[event.key]) { event.preventDefault(); keys[event.key](); }
});
render();
