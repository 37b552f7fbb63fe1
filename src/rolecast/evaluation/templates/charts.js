// Training curves: one chart per family of metrics, one line per role.

const BOX = { width: 340, height: 168, left: 46, right: 12, top: 8, bottom: 22 };
const DASHES = ["none", "5 3", "1.5 3", "8 3 2 3"]; // tell lines apart that belong to no role
const SPARSE = 40; // lines with fewer points are measured now and then (the dev set): smoothing would only delay them

const extent = (values) => values.reduce(([low, high], value) => [Math.min(low, value), Math.max(high, value)], [Infinity, -Infinity]);

/** The smallest round step (1, 2 or 5 times a power of ten) that makes at most `most` intervals. */
function tickStep(low, high, most) {
  const rough = (high - low) / most;
  const power = 10 ** Math.floor(Math.log10(rough));
  return power * [1, 2, 5, 10].find((multiple) => multiple * power >= rough * 0.999);
}

function ticks(low, high, step) {
  const first = Math.ceil(low / step - 1e-6), last = Math.floor(high / step + 1e-6);
  return Array.from({ length: last - first + 1 }, (_, i) => (first + i) * step);
}

/** Enough digits to tell values apart that differ by `step`. */
function format(value, step, largest) {
  if (largest < 1e-2 || largest >= 1e6) return value === 0 ? "0" : value.toExponential(step < largest / 20 ? 2 : 1);
  const digits = Math.min(6, Math.max(0, Math.ceil(-Math.log10(step) - 1e-9)));
  return value.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });
}

/** Exponential mean, corrected for its start; gaps stay gaps. */
function smoothed(points, weight) {
  let mean = 0, mass = 0;
  return points.map(([step, value]) => {
    if (value === null) return [step, null];
    mean = weight * mean + (1 - weight) * value;
    mass = weight * mass + (1 - weight);
    return [step, mean / mass];
  });
}

/** Scales for `lines`: where a step and a value lie, and the ticks of both axes. */
function axes(lines, steps) {
  const bounds = lines.flatMap((line) => (line.band ?? []).flatMap((point) => point.slice(1)));
  const values = [...lines.flatMap((line) => line.points.map((point) => point[1])), ...bounds].filter((value) => value !== null);
  let [low, high] = values.length ? extent(values) : [0, 1];
  if (high - low <= 1e-6 * Math.max(Math.abs(low), Math.abs(high))) { // a constant, up to rounding
    const pad = Math.abs(low) * 0.1 || 1;
    [low, high] = [low - pad, high + pad];
  }
  const step = tickStep(low, high, 4);
  [low, high] = [Math.floor(low / step + 1e-6) * step, Math.ceil(high / step - 1e-6) * step];
  const first = steps[0], last = Math.max(steps.at(-1), first + 1);
  const [width, height] = [BOX.width - BOX.left - BOX.right, BOX.height - BOX.top - BOX.bottom];
  return {
    first, last, step,
    largest: Math.max(Math.abs(low), Math.abs(high)),
    x: (at) => BOX.left + ((at - first) / (last - first)) * width,
    y: (value) => BOX.height - BOX.bottom - ((value - low) / (high - low)) * height,
    stepAt: (x) => first + ((x - BOX.left) / width) * (last - first),
    xTicks: ticks(first, last, Math.max(1, tickStep(first, last, 5))),
    yTicks: ticks(low, high, step),
  };
}

function path(points, { x, y }) {
  let pen = "M"; // a gap lifts the pen; h0 gives a lone point its round cap
  const pieces = points.map(([step, value]) => {
    const piece = value === null ? "" : `${pen}${x(step).toFixed(1)} ${y(value).toFixed(1)}${pen === "M" ? "h0" : ""}`;
    pen = value === null ? "M" : "L";
    return piece;
  });
  return pieces.join("");
}

/** The outline of a line's interval, there and back; points without one are left out. */
function bandPath(band, { x, y }) {
  const known = band.filter(([, low, high]) => low !== null && high !== null);
  const corner = (step, value) => `${x(step).toFixed(1)} ${y(value).toFixed(1)}`;
  const outline = [...known.map(([step, , high]) => corner(step, high)), ...known.reverse().map(([step, low]) => corner(step, low))];
  return outline.length ? `M${outline.join("L")}Z` : "";
}

/** A chart as {node, draw(weight), show(step)}. It joins `group`: the charts that show one step together. */
function lineChart({ title, lines }, group) {
  const steps = [...new Set(lines.flatMap((line) => line.points.map((point) => point[0])))].sort((a, b) => a - b);
  const axis = axes(lines, steps);
  const svg = make("svg", { viewBox: `0 0 ${BOX.width} ${BOX.height}`, tabindex: 0, role: "img", "aria-label": `${title} by step` });
  for (const value of axis.yTicks) {
    const y = axis.y(value);
    svg.append(make("line.grid", { x1: BOX.left, x2: BOX.width - BOX.right, y1: y, y2: y }));
    svg.append(make("text.tick.left", { x: BOX.left - 6, y: y + 3.5 }, format(value, axis.step, axis.largest)));
  }
  for (const step of axis.xTicks) svg.append(make("text.tick", { x: axis.x(step), y: BOX.height - 6 }, step.toLocaleString("en")));
  const cursor = make("path.cursor");
  svg.append(cursor);

  const shaded = lines.find((line) => line.band && line.name === "em") ?? lines.find((line) => line.band); // one: bands over bands hide lines
  let roleless = 0;
  const drawn = lines.map((line) => {
    const style = `${roleStyle(line.role)}; --dash: ${line.role === null ? DASHES[roleless++ % DASHES.length] : "none"}`;
    const shapes = { raw: make("path.raw", { style }), curve: make("path.curve", { style }), dot: make("circle.dot", { r: 3.2, style }) };
    if (line === shaded) svg.append(make("path.band", { d: bandPath(line.band, axis), style }));
    svg.append(...Object.values(shapes));
    for (const [step, value] of line.marked ? line.points : []) {
      if (value !== null) svg.append(make("circle.marker", { cx: axis.x(step), cy: axis.y(value), r: 2.6, style }));
    }
    const swatch = make("svg.swatch", { viewBox: "0 0 18 6", style }, make("path.curve", { d: "M1 3H17" }));
    const named = lines.length > 1 || line.name !== "all"; // else the title says it already
    const value = make("b");
    return { ...line, ...shapes, value, key: make("span.key", {}, swatch, named && line.name, value) };
  });
  const lost = lines.flatMap((line) => line.points).filter((point) => point[1] === null).length;
  const note = lost > 0 && make("span.lost", { title: "NaN, infinite or null" }, `${count(lost, "value")} not finite`);
  const at = make("span.at");
  const keys = make("div.keys", {}, drawn.map((line) => line.key));

  let here = null;
  group.push({
    draw(weight) {
      for (const line of drawn) {
        const smooth = weight > 0 && line.points.length >= SPARSE;
        line.curve.setAttribute("d", path(smooth ? smoothed(line.points, weight) : line.points, axis));
        line.raw.setAttribute("d", smooth ? path(line.points, axis) : "");
      }
    },
    /** The values at `wanted`, or the latest before it where a metric is measured now and then; null: the last ones. */
    show(wanted) {
      here = wanted;
      const inside = wanted !== null && wanted >= axis.first && wanted <= axis.last;
      at.textContent = wanted === null ? "" : `step ${wanted.toLocaleString("en")}`;
      cursor.setAttribute("d", inside ? `M${axis.x(wanted)} ${BOX.top}V${BOX.height - BOX.bottom}` : "");
      for (const line of drawn) {
        const point = line.points.findLast(([step, value]) => value !== null && (wanted === null || step <= wanted));
        const bounds = point && line.band?.find(([step, low]) => step === point[0] && low !== null);
        const shown = (value) => format(value, axis.step / 100, axis.largest);
        line.value.textContent = point ? shown(point[1]) + (bounds ? ` [${shown(bounds[1])}, ${shown(bounds[2])}]` : "") : "–";
        line.dot.setAttribute("visibility", point && wanted !== null ? "visible" : "hidden");
        if (point) line.dot.setAttribute("cx", axis.x(point[0]));
        if (point) line.dot.setAttribute("cy", axis.y(point[1]));
      }
    },
  });
  const showAll = (wanted) => group.forEach((chart) => chart.show(wanted));
  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect();
    const pointed = axis.stepAt(((event.clientX - box.left) / box.width) * BOX.width);
    showAll(steps.reduce((best, step) => (Math.abs(step - pointed) < Math.abs(best - pointed) ? step : best)));
  });
  for (const leave of ["pointerleave", "blur"]) svg.addEventListener(leave, () => showAll(null));
  svg.addEventListener("keydown", (event) => {
    const move = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!move) return;
    event.preventDefault();
    const next = here === null ? steps.length - 1 : steps.findLastIndex((step) => step <= here) + move;
    showAll(steps[Math.min(steps.length - 1, Math.max(0, next))]);
  });
  return make("figure.card.chart", {}, make("figcaption", {}, make("b", {}, title), note, at), svg, keys);
}

function drawCurves(section) {
  const everything = [];
  for (const { stage, charts } of data.curves) {
    const group = [];
    const cards = (other) => charts.filter((chart) => chart.other === other).map((chart) => lineChart(chart, group));
    const [known, others] = [cards(false), cards(true)];
    const more = make("details.other", {}, make("summary", {}, `Other metrics (${others.length})`), make("div.charts", {}, others));
    section.append(make("h3", {}, stageLabel(stage)), make("div.charts", {}, known), ...(others.length ? [more] : []));
    everything.push(...group);
  }
  const [slider, output] = [document.getElementById("smoothing"), document.getElementById("smoothing-value")];
  const draw = () => {
    output.textContent = Number(slider.value) ? slider.value : "off";
    everything.forEach((chart) => chart.draw(Number(slider.value)));
  };
  slider.addEventListener("input", draw);
  draw();
  everything.forEach((chart) => chart.show(null));
}

if (document.getElementById("curves")) drawCurves(document.getElementById("curves"));
