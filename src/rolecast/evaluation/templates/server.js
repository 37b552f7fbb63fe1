// How a page asks this server: with the token of this tab, where tokens are asked for, and with faults in words.

const TOKEN = "rolecast-token"; // in sessionStorage: it goes with the tab
const element = (id) => document.getElementById(id);

/** A fault in words. `status`: that of the reply, 0 where there was none. */
class Fault extends Error {
  constructor(status, title, detail = "") {
    super(title);
    Object.assign(this, { status, title, detail });
  }
}

const TITLES = {
  400: "This cannot be asked.",
  401: "This server takes no request without a token.",
  403: "This is not yours to see.",
  404: "There is nothing here.",
  413: "The question is too long.",
  429: "The team is full. Try again in a moment.",
  503: "The team is not ready. Try again in a moment.",
};

function faultOf(status, detail) {
  if (status === 400 && detail.includes("characters; send at most")) return new Fault(status, TITLES[413], detail);
  if (status === 401) return new Fault(status, sessionStorage.getItem(TOKEN) ? "This is none of the server's tokens." : TITLES[401]);
  if (status === 429) return new Fault(status, TITLES[429]); // how many wait changes before it is read
  return new Fault(status, TITLES[status] ?? "The server failed.", detail);
}

/** The reply to a request, or a `Fault`. */
async function request(path, options = {}) {
  const token = sessionStorage.getItem(TOKEN);
  const headers = { ...options.headers, ...(token ? { Authorization: `Bearer ${token}` } : {}) };
  let reply;
  try {
    reply = await fetch(path, { ...options, headers });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Fault(0, "The server cannot be reached.", "See that it runs and that the network is there, then try again.");
  }
  if (reply.ok) return reply;
  const said = await reply.json().catch(() => ({}));
  throw faultOf(reply.status, typeof said.detail === "string" ? said.detail : "");
}

function showFault(fault) {
  const known = fault instanceof Fault ? fault : new Fault(0, "This page failed.", String(fault));
  element("fault").replaceChildren(make("span", {}, make("b", {}, known.title), known.detail && ` ${sentence(known.detail)}`));
  element("fault").hidden = false;
}

const sentence = (text) => text[0].toUpperCase() + text.slice(1) + (/[.!?`]$/.test(text) ? "" : ".");

/** Asks for a token, and calls `again` once there is one. */
function askForToken(again) {
  const form = element("token");
  sessionStorage.removeItem(TOKEN);
  form.hidden = false;
  form.elements.token.focus();
  form.onsubmit = (event) => {
    event.preventDefault();
    sessionStorage.setItem(TOKEN, form.elements.token.value.trim());
    form.reset();
    form.hidden = true;
    again();
  };
}
