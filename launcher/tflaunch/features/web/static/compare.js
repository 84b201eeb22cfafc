// Some runs side by side: their curves, and what differs.
import { historyOf } from "./charts.js";
import { get } from "./data.js";
import { h, memory, rate, show, significant } from "./parts.js";

const FIGURES = [["Steps per second", "steps_per_second", rate], ["Memory", "rss_bytes", memory]];
const MOST_METRICS = 6;
const HEIGHT = 220;
const FEW = 40; // points of a curve, which are shown then
const SECTIONS = { results: "Results", spec: "Spec", code: "Code", packages: "Packages", hosts: "Machines" };

export function comparePage(main, runs) {
  const axis = h("select", { "aria-label": "Over", onchange: draw }, ["step", "time"].map((name) => h("option", { value: name }, `over ${name}`)));
  const grid = h("div", { className: "compared" });
  const none = h("p", { className: "note", hidden: true }, "No curves: none of these runs has recorded any figures.");
  const rows = h("section", {}, h("p", { className: "empty" }, "Comparing …"));
  const link = (run, at) => h("a", { href: `#/${encodeURIComponent(run)}` }, h("i", { className: "swatch", style: `background: ${hueOf(at, runs.length)}` }), run);
  main.append(
    h("div", { className: "bar" }, h("h1", {}, `${runs.length} runs`), h("span", { className: "grow" }), axis),
    h("p", { className: "legend" }, runs.map(link)), grid, none, h("h2", {}, "What differs"), rows);
  let histories = null;
  let plots = [];
  load();

  async function load() {
    const asked = runs.map((run) => historyOf(run).catch(() => []));
    try {
      const { differences } = await get(`/api/compare?${runs.map((run) => `run=${encodeURIComponent(run)}`).join("&")}`);
      show(rows, tableOf(differences, runs));
    } catch (error) {
      show(rows, h("p", { className: "empty" }, error.message));
    }
    histories = await Promise.all(asked);
    draw();
  }

  function draw() {
    if (!histories) return;
    for (const plot of plots) plot.destroy();
    plots = [];
    const names = [...new Set(histories.flat().flatMap(({ tasks }) => Object.values(tasks).flatMap((task) => Object.keys(task.metrics ?? {}))))];
    const wanted = [...names.slice(0, MOST_METRICS).map((name) => [name, (task) => task.metrics?.[name], significant]), ...FIGURES.map(([title, field, format]) => [title, (task) => task[field], format])];
    grid.replaceChildren();
    for (const [title, valueOf, format] of wanted) {
      const tables = histories.map((history) => curve(history, valueOf, axis.value));
      if (!tables.some(([x]) => x.length > 1)) continue;
      const place = h("div", { className: "plot" });
      grid.append(h("figure", { className: "chart" }, h("figcaption", {}, title), place));
      plots.push(new uPlot(options(place, runs, format, axis.value, tables.every(([x]) => x.length < FEW)), uPlot.join(tables), place));
    }
    none.hidden = plots.length > 0;
  }

  const resize = () => { for (const plot of plots) plot.setSize({ width: plot.root.parentElement.clientWidth, height: HEIGHT }); };
  addEventListener("resize", resize);
  return {
    title: "compare",
    path: [["compare", location.hash]],
    repaint: draw,
    close() {
      removeEventListener("resize", resize);
      for (const plot of plots) plot.destroy();
    },
  };
}

// The curve of a run: the first task that has the figure, over its steps or the seconds since the first moment.
function curve(history, valueOf, over) {
  const name = [...new Set(history.flatMap(({ tasks }) => Object.keys(tasks)))].find((task) => history.some(({ tasks }) => isNumber(valueOf(tasks[task] ?? {}))));
  const points = new Map();
  for (const { time, tasks } of history) {
    const task = tasks[name] ?? {};
    const at = over === "step" ? task.step : time - history[0].time;
    if (isNumber(valueOf(task)) && isNumber(at)) points.set(at, valueOf(task));
  }
  const sorted = [...points].sort((a, b) => a[0] - b[0]);
  return [sorted.map(([at]) => at), sorted.map(([, value]) => value)];
}

const isNumber = (value) => typeof value === "number";
const hueOf = (at, number) => `hsl(${Math.round((at * 360) / number + 225)} 60% 52%)`;

function options(place, runs, format, over, few) {
  const ink = (name) => getComputedStyle(document.documentElement).getPropertyValue(name);
  const axis = { stroke: () => ink("--muted"), grid: { stroke: () => ink("--line"), width: 1 }, ticks: { show: false }, font: "11px system-ui" };
  return {
    width: Math.max(place.clientWidth || 400, 160), height: HEIGHT,
    scales: { x: { time: false } },
    legend: { live: true },
    cursor: { drag: { x: true, y: false } }, // a double click shows all again
    series: [{ label: over === "step" ? "step" : "seconds" }, ...runs.map((run, at) => ({
      label: run, stroke: hueOf(at, runs.length), width: 1.5, spanGaps: true, points: { show: few }, value: (_, value) => (isNumber(value) ? format(value) : "–"),
    }))],
    axes: [{ ...axis, size: 26 }, { ...axis, size: 58, values: (_, ticks) => ticks.map((tick) => (tick === 0 ? "0" : format(tick))) }],
  };
}

function tableOf(differences, runs) {
  if (!differences.length) return h("p", { className: "empty" }, "Nothing differs: spec, code, packages, machines and results are the same.");
  const text = (value) => {
    if (value === null || typeof value === "object") return "–"; // without it, or with nothing in it
    if (typeof value === "number" && !Number.isInteger(value)) return significant(value);
    return /^[0-9a-f]{40}([0-9a-f]{24})?$/.test(value) ? value.slice(0, 12) : String(value);
  };
  const sections = [...new Set(differences.map((row) => row.section))];
  return h("div", { className: "plan" }, h("table", {},
    h("thead", {}, h("tr", {}, h("th", {}), runs.map((run) => h("th", {}, run)))),
    sections.map((section) => h("tbody", {},
      h("tr", {}, h("th", { colSpan: runs.length + 1, className: "section" }, SECTIONS[section] ?? section)),
      differences.filter((row) => row.section === section).map((row) => h("tr", {}, h("th", {}, row.name), row.values.map((value) => h("td", {}, text(value)))))))));
}
