// One episode that was served: there is no list to choose it from, and nobody knows its gold answer.

const panel = document.getElementById("detail");
showTrace(panel, data.trace, [], () => {});
panel.querySelector(".question .mark").remove();
for (const term of panel.querySelectorAll("dt")) {
  if (term.textContent !== "Gold") continue;
  term.nextElementSibling.remove();
  term.remove();
}
