// One episode that was served: there is no list to choose it from.

showTrace(document.getElementById("detail"), data.trace, [], () => {});
