// Trajectories: filters, the list, and one episode as what each role saw, said and earned.

const LIST_LIMIT = 300;
const OUTCOMES = {
  right: (trace) => trace.outcome === "right",
  "partly right": (trace) => trace.outcome === "partly",
  wrong: (trace) => trace.outcome === "wrong",
  "ended early": (trace) => trace.status !== "ok",
  "invalid action": (trace) => trace.threads.some(isFaulty),
};
const isFaulty = (thread) => thread.turns.some((turn) => turn.valid === false);

function mark(trace) {
  const share = trace.outcome === "partly" ? (100 * trace.score).toFixed(0) : null;
  const sign = share ?? { right: "✓", wrong: "✗" }[trace.outcome] ?? "–";
  const title = `${trace.measure}: ${share === null ? trace.outcome : `${share} %`}`;
  return make(`span.mark.${trace.outcome}`, { title, style: share && `--share: ${share}%` }, sign);
}

function rewardChip({ name, value, source, reason }) {
  const tone = value === null ? "unscored" : value > 0 ? "good" : value < 0 ? "bad" : "zero";
  const shown = value === null ? "unscored" : `${value > 0 ? "+" : value < 0 ? "−" : ""}${Math.abs(Number(value.toFixed(3)))}`;
  const tip = [reason || "no reason given", source && `source: ${source}`].filter(Boolean).join("\n");
  const attributes = { tabindex: 0, "data-tip": tip, "aria-label": `${name} ${shown}, ${tip}` };
  return make(`span.reward.${tone}`, attributes, name, make("b", {}, shown));
}

/** Text with its <tags> set off, so that a role's protocol can be seen at a glance. */
function taggedText(spec, text) {
  const pieces = text.split(/(<\/?[A-Za-z_][^<>\n]{0,40}>)/); // the odd ones are tags
  return make(spec, {}, pieces.map((piece, i) => (i % 2 ? make("span.tag", {}, piece) : piece)));
}

// What tokens may be coloured by: where its scale begins (`null`: at 0, and goes one way), and how a value is read on it.
const MEASURES = {
  advantage: { middle: 0, scaled: (value) => value, told: (value) => signed(value, 3) },
  ratio: { middle: 1, scaled: (value) => Math.log(Math.max(value, 1e-9)), told: (value) => value.toFixed(3) },
  entropy: { middle: null, scaled: (value) => value, told: (value) => value.toFixed(3) },
};
let measure = "advantage"; // of all episodes that are opened, until another is chosen
const signed = (value, digits) => `${value > 0 ? "+" : value < 0 ? "−" : ""}${Math.abs(value).toFixed(digits)}`;

/** An action's text, token by token, each with its numbers, null where one is not finite; `paint` colours it. */
function tokenText({ pieces, ...columns }) {
  return make("pre", {}, pieces.map((piece, i) => {
    const told = (name) => columns[name][i] === null ? "–" : MEASURES[name].told(columns[name][i]);
    const numbers = Object.keys(MEASURES).map((name) => `${name} ${told(name)}`);
    const token = make("span.token", { title: [JSON.stringify(piece), ...numbers].join("\n") }, piece);
    token.numbers = Object.fromEntries(Object.keys(MEASURES).map((name) => [name, columns[name][i]]));
    return token;
  }));
}

/** Colours all tokens in `root` by the measure that is chosen, and returns what the scale ends at. A token without a number has no colour. */
function paint(root) {
  const { scaled, middle } = MEASURES[measure] ?? {};
  const valueOf = ({ numbers }) => !scaled || numbers[measure] === null ? null : scaled(numbers[measure]);
  const tokens = [...root.querySelectorAll(".token")].map((token) => [token, valueOf(token)]);
  const end = scaled ? Math.max(1e-6, ...tokens.map(([, value]) => Math.abs(value ?? 0))) : 0;
  for (const [token, value] of tokens) {
    const colour = middle === null ? "--role-1" : value < 0 ? "--role-5" : "--role-0";
    const share = ((70 * Math.abs(value ?? 0)) / (end || 1)).toFixed(0);
    token.style.background = value === null ? "" : `color-mix(in srgb, var(${colour}) ${share}%, transparent)`;
  }
  return end;
}

/** Chooses what the tokens in `root` are coloured by; null where no token has numbers. */
function heatControl(root) {
  if (!root.querySelector(".token")) return null;
  const scale = make("span.scale");
  const show = () => {
    const end = paint(root), { middle, told } = MEASURES[measure] ?? {};
    const ends = middle === null ? [0, end] : middle === 1 ? [Math.exp(-end), Math.exp(end)] : [-end, end];
    scale.replaceChildren(...(told ? [told(ends[0]), make(middle === null ? "span.ramp.above" : "span.ramp.around"), told(ends[1])] : []));
  };
  const options = [...Object.keys(MEASURES), "nothing"].map((name) => make("option", { value: name, selected: name === measure ? "" : null }, name));
  const select = make("select", { change: ({ target }) => { measure = target.value; show(); } }, options);
  show();
  const hint = "Point at a token for its numbers. Replies without colours were not trained on.";
  return make("div.heat", {}, make("label", {}, "Colour tokens by", select), scale, make("span", {}, hint));
}

function turnBox(turn, gold) {
  const size = make("span", {}, count(turn.tokens, "token"));
  if (turn.kind === "observation") {
    const chips = turn.sources.map((source) => make(gold.has(source) ? "span.chip.gold" : "span.chip", {}, source));
    return make("div.turn.saw", {}, make("div.meta", {}, make("b", {}, "saw"), chips, size), taggedText("pre.fold", turn.text));
  }
  return make(turn.valid ? "div.turn.said" : "div.turn.said.invalid", {},
    make("div.meta", {}, make("b", {}, "said"), !turn.valid && make("span.flag", {}, "✗ invalid"), size,
      turn.logprob !== null && make("span", {}, `mean log-prob ${turn.logprob.toFixed(3).replace("-", "−")}`),
      turn.finish === "length" && make("span", {}, "cut at the length limit")),
    turn.of_tokens ? tokenText(turn.of_tokens) : taggedText("pre", turn.text),
    turn.rewards.length > 0 && make("div.rewards", {}, make("b", {}, "earned"), turn.rewards.map(rewardChip)));
}

function threadBox(thread, i, threads, gold) {
  const place = make("span.dim", {}, `thread ${i + 1} of ${threads.length}`);
  return make(thread.probe ? "section.thread.probe" : "section.thread", { style: roleStyle(data.roles.indexOf(thread.role)) },
    make("h4", {}, thread.role, thread.probe && make("span.chip", {}, "probe"), place),
    thread.turns.map((turn) => turnBox(turn, gold)));
}

/** Retrieved passages once each with gold ones marked, then the gold ones that were never retrieved. */
function passages(trace, gold) {
  const times = new Map();
  for (const id of trace.retrieved) times.set(id, (times.get(id) ?? 0) + 1);
  const chips = [...times].map(([id, n]) =>
    make(gold.has(id) ? "span.chip.gold" : "span.chip", {}, gold.has(id) && "★ ", id, n > 1 && ` ×${n}`));
  const missed = [...gold].filter((id) => !times.has(id));
  const score = gold.size > 0 && make("span.dim", {}, `${gold.size - missed.length} of ${gold.size} gold`);
  return [score, chips.length === 0 && "nothing", ...chips, ...missed.map((id) => make("span.chip.missed", { title: "gold, never retrieved" }, "☆ ", id))];
}

/** What was found, to be read: of an episode that was served. */
function passageTexts(passages) {
  const text = ({ id, title, text }) => make("div.passage", {}, make("b", {}, title || id), make("p", {}, text));
  return make("details", {}, make("summary", {}, count(passages.length, "passage")), passages.map(text));
}

/** Leads to the part of the page that shows `thread`. */
function stepButton(thread, box) {
  const jump = () => box.scrollIntoView({ behavior: "smooth", block: "start" });
  return make("button.step", { type: "button", style: roleStyle(data.roles.indexOf(thread.role)), click: jump },
    thread.role, isFaulty(thread) && make("span.flag", {}, "✗"));
}

/** Texts that are longer than what is shown of them get a button that shows the rest. */
function foldLong(root) {
  for (const pre of root.querySelectorAll("pre.fold")) {
    if (pre.scrollHeight <= pre.clientHeight + 4) continue; // all of it is shown
    const flip = ({ target }) => {
      target.textContent = pre.classList.toggle("open") ? "Show less" : "Show all";
      target.setAttribute("aria-expanded", pre.classList.contains("open"));
    };
    pre.after(make("button.more", { type: "button", "aria-expanded": false, click: flip }, "Show all"));
  }
}

/** What is said of the whole episode. Of one that was served nobody knows the gold answer. */
function traceHead(trace, gold, twins = [], open = null) {
  const served = trace.stage === "serve";
  const links = twins.slice(0, 8).map((twin) =>
    make("button.twin", { type: "button", click: () => open(twin) }, mark(twin), stageLabel(twin.stage)));
  const early = trace.status !== "ok" && `ended early: ${trace.status}`;
  const facts = [stageLabel(trace.stage), trace.step && `step ${trace.step}`, trace.hops > 0 && count(trace.hops, "hop"), trace.type, count(trace.searches, "search"), early];
  const field = (name, ...value) => [make("dt", {}, name), make("dd", {}, ...value)];
  return [
    make("p.eyebrow", {}, facts.filter(Boolean).map((fact) => make("span", {}, fact)), make("span.id", {}, trace.id)),
    make("h3.question", {}, !served && mark(trace), make("span", {}, trace.question)),
    make("dl", {},
      field("Answer", trace.answer === null ? make("i", {}, "none") : make("b", {}, trace.answer)),
      !served && field("Gold", trace.golds.length ? trace.golds.join(" · ") : "unknown"),
      field("Retrieved", passages(trace, gold)),
      trace.rewards.length > 0 && field("Episode earned", trace.rewards.map(rewardChip)),
      trace.passages?.length > 0 && field("Read", passageTexts(trace.passages)),
      links.length > 0 && field("Same question", links)),
  ];
}

/** Shows `trace` in `panel`; `twins` are the other episodes of its question, `open` goes to one. */
function showTrace(panel, trace, twins, open) {
  const gold = new Set(trace.gold_passages);
  const threads = trace.threads.map((thread, i) => threadBox(thread, i, trace.threads, gold));
  const steps = trace.threads.map((thread, i) => stepButton(thread, threads[i]));
  panel.replaceChildren(...traceHead(trace, gold, twins, open), make("div.steps", {}, steps), ...threads);
  const heat = heatControl(panel);
  if (heat) panel.querySelector(".steps").after(heat);
  foldLong(panel);
}

function browseTraces(form) {
  const [list, panel, found] = ["list", "detail", "found"].map((id) => document.getElementById(id));
  const all = Object.entries(data.traces).flatMap(([stage, traces]) => traces.map((trace) => ({ ...trace, stage })));
  for (const trace of all) { // what the text filter looks at
    const said = trace.threads.flatMap((thread) => thread.turns.map((turn) => turn.text));
    trace.text = [trace.id, trace.question, trace.answer, ...trace.golds, ...said].join("\n").toLowerCase();
  }
  const choices = (name) => [...new Set(all.map((trace) => trace[name]))].filter(Boolean).sort();
  const offer = (name, values, label = String) =>
    form.elements[name].append(...["", ...values].map((value) => make("option", { value }, value === "" ? "all" : label(value))));
  offer("stage", Object.keys(data.traces), stageLabel);
  offer("hops", choices("hops"));
  offer("type", choices("type"));
  offer("outcome", Object.keys(OUTCOMES).filter((name) => all.some(OUTCOMES[name])));

  let rows = new Map(), current = null;
  const open = (trace) => {
    rows.get(current)?.removeAttribute("aria-current");
    rows.get(trace)?.setAttribute("aria-current", "true");
    current = trace;
    showTrace(panel, trace, all.filter((other) => other !== trace && other.question === trace.question), open);
  };
  const row = (trace) => {
    const facts = [stageLabel(trace.stage), trace.step && `step ${trace.step}`, trace.hops > 0 && count(trace.hops, "hop"), trace.type, trace.status !== "ok" && trace.status];
    const label = make("span", {}, trace.question, make("small", {}, facts.filter(Boolean).join(" · ")));
    return make("button.row", { type: "button", click: () => open(trace) }, mark(trace), label);
  };
  const update = () => {
    const wanted = Object.fromEntries(new FormData(form));
    const same = (trace, name) => wanted[name] === "" || String(trace[name]) === wanted[name];
    const matching = all.filter((trace) =>
      ["stage", "hops", "type"].every((name) => same(trace, name)) &&
      (wanted.outcome === "" || OUTCOMES[wanted.outcome](trace)) &&
      trace.text.includes(wanted.text.trim().toLowerCase()));
    rows = new Map(matching.slice(0, LIST_LIMIT).map((trace) => [trace, row(trace)]));
    const hidden = matching.length - rows.size;
    const more = make("p.hint", {}, `${hidden.toLocaleString("en")} more: narrow the filters.`);
    list.replaceChildren(...rows.values(), ...(hidden ? [more] : []));
    const scored = matching.filter((trace) => trace.score !== null);
    const percent = scored.length && ((100 * scored.reduce((sum, trace) => sum + trace.score, 0)) / scored.length).toFixed(0);
    const share = !scored.length ? "" : scored.some(OUTCOMES["partly right"]) ? `, mean score ${percent} %` : `, ${percent} % right`;
    found.textContent = `${matching.length.toLocaleString("en")} of ${all.length.toLocaleString("en")}${share}`;
    if (matching.includes(current)) rows.get(current)?.setAttribute("aria-current", "true");
    else if (matching.length) open(matching[0]);
    else panel.replaceChildren(make("p.hint", {}, "No trajectory matches the filters."));
    if (!matching.length) current = null;
  };
  list.addEventListener("keydown", (event) => {
    const side = { ArrowDown: "nextElementSibling", ArrowUp: "previousElementSibling" }[event.key];
    const next = side && document.activeElement[side];
    if (!next?.matches("button")) return;
    event.preventDefault();
    next.focus();
    next.click();
  });
  form.addEventListener("input", update);
  form.addEventListener("submit", (event) => event.preventDefault());
  update();
}

/** A list that is folded opens when a link leads to it. */
for (const link of document.querySelectorAll('a[href^="#wrong-"]')) {
  link.addEventListener("click", () => { document.getElementById(link.getAttribute("href").slice(1)).open = true; });
}

if (document.getElementById("filters")) browseTraces(document.getElementById("filters"));
