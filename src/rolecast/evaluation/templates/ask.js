// Ask, and watch each role at work: its thread appears when it is opened and grows with every turn.

const form = element("ask"), panel = element("detail");
let stopped = null; // ends the episode that is being played

/** The events of a reply, as they come. */
async function* eventsOf(reply) {
  const reader = reply.body.pipeThrough(new TextDecoderStream()).getReader();
  for (let rest = ""; ;) {
    const { value, done } = await reader.read().catch((error) => {
      if (error.name === "AbortError") throw error;
      return { done: true };
    });
    if (done) throw new Fault(0, "The connection was lost before there was an answer.", "Ask again.");
    const blocks = (rest + value).split("\n\n");
    rest = blocks.pop();
    for (const block of blocks) if (block.startsWith("data: ")) yield JSON.parse(block.slice(6));
  }
}

/** The episode as far as it went. */
class Live {
  constructor(question) {
    this.trace = { question, threads: [] };
    this.boxes = new Map(); // by the thread's id
    this.steps = make("div.steps");
    this.head = make("div", {}, make("h2.question", {}, make("span", {}, question)));
    panel.classList.remove("empty");
    panel.replaceChildren(this.head, this.steps);
  }

  thread({ turns, ...thread }) {
    let known = this.trace.threads.find(({ id }) => id === thread.id);
    if (!known) {
      known = { ...thread, turns: [] };
      this.trace.threads.push(known);
      if (!data.roles.includes(thread.role)) data.roles.push(thread.role);
      const box = threadBox(known, this.trace.threads.length - 1, this.trace.threads, new Set());
      box.querySelector("h4 .dim").textContent = `thread ${this.trace.threads.length}`;
      this.boxes.set(thread.id, box);
      this.steps.append(stepButton(known, box));
      panel.append(box);
    }
    const box = this.boxes.get(thread.id);
    known.turns.push(...turns);
    for (const turn of turns) {
      const shown = turnBox(turn, new Set());
      box.append(shown);
      foldLong(shown);
    }
    for (const other of this.boxes.values()) other.classList.remove("live");
    box.classList.toggle("live", known.turns.at(-1)?.kind === "observation");
    return known.turns.at(-1)?.kind === "observation" ? `The ${known.role} is at work` : `The ${known.role} has spoken`;
  }

  /** Threads stay as they are, with what was opened in them, unless branches are now in another order. */
  done(trace) {
    const whole = { ...trace, outcome: "unknown", stage: "serve" };
    const same = trace.threads.length === this.boxes.size && trace.threads.every(({ id }, i) => id === this.trace.threads[i].id);
    if (!same) return showTrace(panel, whole, [], () => {});
    this.head.replaceChildren(...traceHead(whole, new Set()));
    const boxes = [...this.boxes.values()];
    boxes.forEach((box, i) => {
      box.classList.remove("live");
      box.querySelector("h4 .dim").textContent = `thread ${i + 1} of ${boxes.length}`;
    });
    this.steps.replaceChildren(...trace.threads.map((thread, i) => stepButton(thread, boxes[i])));
    return undefined;
  }
}

function say(...words) {
  element("status").hidden = words.length === 0;
  element("now").replaceChildren(...words);
}

/** Shows the seconds that pass, until it is called. */
function clock() {
  const begun = performance.now();
  const tick = () => { element("elapsed").textContent = `${((performance.now() - begun) / 1000).toFixed(0)} s`; };
  tick();
  const timer = setInterval(tick, 1000);
  return () => {
    clearInterval(timer);
    element("elapsed").textContent = `${((performance.now() - begun) / 1000).toFixed(1)} s`;
  };
}

async function watch(question, signal) {
  const body = JSON.stringify({ question });
  const reply = await request("/ask", { method: "POST", body, signal, headers: { "Content-Type": "application/json" } });
  const live = new Live(question);
  say("The question is with the team.");
  for await (const event of eventsOf(reply)) {
    if (event.event === "waiting") say(`${count(event.before, "question")} before yours.`);
    else if (event.event === "thread") say(`${live.thread(event)}.`);
    else if (event.event === "search") say("Searching: ", make("i", {}, event.queries.join(" · ")));
    else if (event.event === "found") say(`${count(event.passages.length, "passage")} found.`);
    else if (event.event === "error") throw faultOf(event.status, event.detail);
    else {
      live.done(event.trace);
      const ending = event.trace.answer ? make("span", {}, "The answer: ", make("b", {}, event.trace.answer)) : `No answer: it ended as ${event.trace.status}`;
      say(ending, ". ", make("a", { href: event.trace_url }, "Its trace"));
      return;
    }
  }
}

async function ask() {
  const question = form.elements.question.value.trim();
  element("fault").hidden = true;
  if (!question) return showFault(new Fault(400, "There is no question yet.", "Write one first."));
  const characters = [...question].length;
  if (characters > data.max_characters) {
    return showFault(new Fault(413, TITLES[413], `it has ${characters.toLocaleString("en")} characters, and the team takes ${data.max_characters.toLocaleString("en")}`));
  }
  stopped = new AbortController();
  busy(true);
  say("Asking.");
  const stopClock = clock();
  let next = () => {};
  try {
    await watch(question, stopped.signal);
  } catch (error) {
    for (const box of panel.querySelectorAll(".live")) box.classList.remove("live");
    if (error.name === "AbortError") say("Stopped.");
    else {
      say();
      showFault(error);
      if (error.status === 401) next = () => askForToken(ask);
      if (error.status === 503) next = waitUntilReady;
    }
  } finally {
    stopClock();
    busy(false);
  }
  next();
  return undefined;
}

function busy(yes) {
  form.elements.send.disabled = yes;
  element("stop").hidden = !yes;
  panel.setAttribute("aria-busy", yes);
}

/** Says so while the team is loading, and when it is there. */
async function waitUntilReady() {
  const status = async () => (await (await fetch("/readyz")).json()).status;
  let now = await status().catch(() => "ready"); // what is wrong is said when somebody asks
  if (now === "ready") return;
  element("elapsed").textContent = "";
  while (now !== "ready") {
    say(now === "draining" ? "The server is stopping." : "The team is loading. This takes from seconds to minutes.");
    await new Promise((resolve) => setTimeout(resolve, 1000));
    now = await status().catch(() => "away");
    if (now === "away") return showFault(new Fault(0, "The server cannot be reached.", "See that it runs, then load this page again."));
  }
  element("fault").hidden = true;
  say("The team is ready.");
}

form.addEventListener("submit", (event) => {
  event.preventDefault();
  if (!form.elements.send.disabled) ask();
});
form.elements.question.addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  form.requestSubmit(form.elements.send);
});
element("stop").addEventListener("click", () => {
  stopped.abort();
  form.elements.question.focus();
});
waitUntilReady();
