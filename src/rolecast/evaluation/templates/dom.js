"use strict";
// What the charts and the trajectory browser share. Everything in #data may be model output: it reaches the page as text
// nodes and attribute values only, never as markup.

const data = JSON.parse(document.getElementById("data").textContent);
// The parser knows the namespace; taking it from there keeps every URL out of this file.
const SVG = document.getElementById("svg-namespace").namespaceURI;
const SVG_TAGS = new Set(["svg", "path", "line", "text", "circle"]);

/** make("p.note", {title}, "text", child): functions become listeners, strings text nodes, null and false nothing. */
function make(spec, attributes = {}, ...children) {
  const [tag, ...classes] = spec.split(".");
  const node = SVG_TAGS.has(tag) ? document.createElementNS(SVG, tag) : document.createElement(tag);
  if (classes.length) node.setAttribute("class", classes.join(" "));
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") node.addEventListener(name, value);
    else if (value !== null) node.setAttribute(name, value);
  }
  node.append(...children.flat(2).filter((child) => child !== null && child !== false));
  return node;
}

/** A role's colour, by its index in `data.roles`; what belongs to no role is drawn in ink. */
const roleStyle = (index) => `--role: ${index === null || index < 0 ? "var(--ink)" : `var(--role-${index % 7})`}`;
const stageLabel = (stage) => data.stages[stage] ?? stage.replaceAll("_", " ");
const count = (n, noun) => `${n.toLocaleString("en")} ${noun}${n === 1 ? "" : noun.endsWith("ch") ? "es" : "s"}`;
