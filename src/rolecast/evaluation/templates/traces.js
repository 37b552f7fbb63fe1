// The traces of whoever has the token, newest first.

const list = element("list"), older = element("older"), state = element("status");

function row(trace) {
  const answer = trace.answer ? make("b", {}, trace.answer) : make("i", {}, `no answer: ${trace.status}`);
  const facts = [new Date(trace.answered).toLocaleString("en-GB"), count(trace.searches, "search"), `${trace.seconds.toFixed(1)} s`];
  return make("li", {}, make("a.row", { href: trace.trace_url },
    make("span", {}, trace.question, make("small", {}, answer, ` · ${facts.join(" · ")}`))));
}

async function load(before = "") {
  element("fault").hidden = true;
  older.disabled = true;
  state.hidden = false;
  state.textContent = "Loading.";
  list.setAttribute("aria-busy", true);
  try {
    const { traces } = await (await request(`/traces.json${before && `?before=${encodeURIComponent(before)}`}`)).json();
    list.append(...traces.map(row));
    list.hidden = list.children.length === 0;
    state.hidden = list.children.length > 0;
    state.textContent = "There is no trace yet. What you ask will be here.";
    older.hidden = traces.length < 50;
    older.onclick = () => load(traces.at(-1).id);
    older.disabled = false;
  } catch (error) {
    state.hidden = true;
    older.disabled = false;
    showFault(error);
    if (error.status === 401) askForToken(() => load(before));
  } finally {
    list.setAttribute("aria-busy", false);
  }
}

load();
