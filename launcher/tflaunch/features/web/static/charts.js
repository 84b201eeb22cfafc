// Four charts over time: of one task, of a few tasks a line each, of many the range and the median.
import { apiOf, get } from "./data.js";
import { clock, h, memory, percent, rate, setText, significant } from "./parts.js";

const CHARTS = [
  { title: "Steps per second", field: "steps_per_second", format: rate },
  { title: "Loss", field: "loss", format: significant },
  { title: "CPU", field: "cpu_percent", format: percent },
  { title: "Memory", field: "rss_bytes", format: memory, steps: Array.from({ length: 50 }, (_, power) => 2 ** power) },
];
const MOST_LINES = 12;
const HEIGHT = 132;

// What was recorded of a run: moments of {time, tasks}, with the figures of each task by their names.
export async function historyOf(run) {
  const { fields, moments } = await get(`${apiOf(run)}/history`);
  const named = (values) => withLoss(Object.fromEntries(fields.map((field, at) => [field, values[at]])));
  return moments.map(([time, tasks]) => ({
    time,
    tasks: Object.fromEntries(Object.entries(tasks).map(([task, values]) => [task, named(values)])),
  }));
}

export class Charts {
  constructor(run, task = null) {
    Object.assign(this, { run, task, times: [], samples: [], lastTime: 0, isReady: false, names: "" });
    this.charts = CHARTS.map((about) => {
      const value = h("span", { className: "value" });
      const place = h("div", { className: "plot" });
      const box = h("figure", { className: "chart" }, h("figcaption", {}, about.title, value), place);
      return { ...about, value, place, box, plot: null };
    });
    this.none = h("p", { className: "note" });
    this.grid = h("div", { className: "charts" }, this.charts.map((chart) => chart.box));
    this.element = h("section", { "aria-label": "Charts" }, this.grid, this.none);
    this.observer = new ResizeObserver(() => this.resize());
    this.observer.observe(this.grid);
    this.load();
  }

  async load() {
    const recorded = await historyOf(this.run).catch(() => []); // the stream says why
    const later = this.samples;
    this.samples = recorded;
    const last = this.samples.at(-1)?.time ?? 0;
    this.samples.push(...later.filter((sample) => sample.time > last));
    this.isReady = true;
    this.draw();
  }

  // Add what a status tells, between the moments that are recorded, too.
  add(status) {
    if (status.exit_code !== null || status.supervisor !== "alive" || status.now - this.lastTime < 0.9) return;
    const tasks = {};
    for (const task of status.tasks) {
      if (task.cpu_percent === null) continue;
      tasks[task.task] = withLoss(task);
    }
    if (!Object.keys(tasks).length) return;
    this.lastTime = status.now;
    this.samples.push({ time: status.now, tasks });
    if (this.samples.length > 2000) this.samples.splice(0, 1000, ...this.samples.slice(0, 1000).filter((_, at) => at % 2));
    if (this.isReady) this.draw();
  }

  draw() {
    const names = this.task ? [this.task] : [...new Set(this.samples.flatMap((sample) => Object.keys(sample.tasks)))].sort(byName);
    this.none.textContent = "No charts: what tasks report and use is recorded from their third second on.";
    this.none.hidden = this.samples.length > 1;
    this.grid.hidden = this.samples.length < 2;
    if (this.grid.hidden) return;
    this.charts.forEach((chart) => {
      const times = this.samples.map((sample) => sample.time);
      const lines = names.map((name) => this.samples.map((sample) => sample.tasks[name]?.[chart.field] ?? null));
      const used = lines.map((line) => line.some((value) => value !== null));
      chart.box.hidden = !used.some(Boolean);
      if (chart.box.hidden) return;
      const kept = names.filter((_, at) => used[at]);
      const few = kept.length <= MOST_LINES;
      const shown = lines.filter((_, at) => used[at]);
      const series = few ? shown : spread(shown);
      this.plot(chart, few ? kept : ["lowest", "median", "highest"], [times, ...series], few);
    });
  }

  plot(chart, names, data, few) {
    const signature = names.join();
    if (chart.signature !== signature) {
      chart.plot?.destroy();
      chart.signature = signature;
      chart.names = names;
      chart.plot = new uPlot(this.options(chart, few), data, chart.place);
    } else {
      chart.plot.setData(data);
    }
    if (chart.plot.cursor.idx === null || chart.plot.cursor.idx === undefined) this.tell(chart, data[0].length - 1, null);
  }

  options(chart, few) {
    const accent = () => colour("--accent");
    const line = (at) => {
      const isMiddle = !few && at === 1;
      return {
        label: chart.names[at],
        stroke: few && chart.names.length > 1 ? `hsl(${(at * 360) / chart.names.length} 60% 48%)` : accent,
        width: few && chart.names.length > 1 ? 1.25 : isMiddle ? 1.5 : few ? 1.5 : 0,
        alpha: few && chart.names.length > 1 ? 0.75 : 1,
        points: { show: false },
        spanGaps: false,
      };
    };
    const axis = { stroke: () => colour("--muted"), grid: { stroke: () => colour("--line"), width: 1 }, ticks: { show: false }, font: "11px system-ui" };
    return {
      width: this.widthOf(chart), height: HEIGHT, legend: { show: false },
      focus: { alpha: 0.2 },
      cursor: { drag: { x: false, y: false }, y: false, focus: { prox: 1e6 }, points: { size: 6, fill: accent, show: true } },
      scales: { y: { range: (_, low, high) => [Math.min(low, 0), (high || 1) * 1.08] } },
      bands: few ? [] : [{ series: [3, 1], fill: () => colour("--wash") }],
      series: [{}, ...chart.names.map((_, at) => line(at))],
      axes: [
        { ...axis, size: 24, space: 70, values: (_, ticks) => ticks.map((tick) => clock(tick).slice(0, 8)) },
        { ...axis, size: (_, ticks) => 16 + 7 * Math.max(4, ...(ticks ?? []).map((text) => text.length)), space: 36, ...(chart.steps ? { incrs: chart.steps } : {}), values: (_, ticks) => ticks.map((tick) => (tick === 0 ? "0" : shortened(chart.format(tick)))) },
      ],
      hooks: {
        setCursor: [(plot) => this.tell(chart, plot.cursor.idx ?? plot.data[0].length - 1, plot.cursor.idx ?? null)],
        setSeries: [(plot, at) => { chart.focused = at; }],
      },
    };
  }

  // Say in words what is under the pointer, or else what was last.
  tell(chart, at, pointed) {
    const { data } = chart.plot;
    const values = chart.names.map((name, series) => [name, data[series + 1][at]]).filter(([, value]) => value !== null && value !== undefined);
    const when = pointed === null ? "" : `${clock(data[0][at])}  `;
    if (pointed !== null && chart.focused > 0 && chart.names.length > 1) {
      const value = data[chart.focused][at];
      setText(chart.value, `${when}${chart.names[chart.focused - 1]} ${value === null || value === undefined ? "–" : chart.format(value)}`);
    } else if (values.length > 1) {
      const numbers = values.map(([, value]) => value);
      const [low, high] = [chart.format(Math.min(...numbers)), chart.format(Math.max(...numbers))];
      setText(chart.value, when + (low === high ? low : `${low} to ${high}`));
    } else {
      setText(chart.value, when + (values.length ? chart.format(values[0][1]) : ""));
    }
  }

  widthOf(chart) {
    return Math.max(chart.place.clientWidth || 300, 120);
  }

  resize() {
    for (const chart of this.charts) chart.plot?.setSize({ width: this.widthOf(chart), height: HEIGHT });
  }

  repaint() {
    for (const chart of this.charts) chart.plot?.redraw();
  }

  close() {
    this.observer.disconnect();
    for (const chart of this.charts) chart.plot?.destroy();
  }
}

const withLoss = (figures) => ({ ...figures, loss: figures.metrics?.loss ?? null });
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name);
const shortened = (text) => text.replace("/s", "").replace(/(\.\d*?)0+$/, "$1").replace(/\.$/, "");
const byName = (a, b) => a.localeCompare(b, "en", { numeric: true });

// Lowest, median and highest of many lines.
function spread(lines) {
  const [low, middle, high] = [[], [], []];
  for (let at = 0; at < lines[0].length; at += 1) {
    const values = lines.map((line) => line[at]).filter((value) => value !== null).sort((a, b) => a - b);
    low.push(values[0] ?? null);
    middle.push(values[Math.floor(values.length / 2)] ?? null);
    high.push(values.at(-1) ?? null);
  }
  return [low, middle, high];
}
