// The charts of a run or of one of its tasks: what was recorded, and what is told since.
import { Curves } from "./curves.js";
import { apiOf, get, named } from "./data.js";
import { h, memory, percent, rate, significant } from "./parts.js";

const MOST_METRICS = 12;
const MOST_SAMPLES = 2000;
const POWERS = Array.from({ length: 50 }, (_, power) => 2 ** power);
const PERCENTS = [1, 2, 5, 10, 20, 25, 50, 100, 200, 500, 1000, 2000, 5000, 10000];
const USED = [
  { title: "CPU", field: "cpu_percent", format: percent, steps: PERCENTS },
  { title: "Memory", field: "rss_bytes", format: memory, steps: POWERS },
  { title: "GPU", field: "gpu_percent", format: percent, steps: PERCENTS },
  { title: "GPU memory", field: "gpu_bytes", format: memory, steps: POWERS },
];

// What was recorded of a run: moments of {time, tasks}, with the figures of each task by their names.
export async function historyOf(run) {
  const { fields, moments } = await get(`${apiOf(run)}/history`);
  const figures = (values) => named(fields.map((field, at) => [field, values[at]]));
  return moments.map(([time, tasks]) => ({ time, tasks: named(Object.entries(tasks).map(([task, values]) => [task, figures(values)])) }));
}

// The charts of what some histories hold: metrics, speed, and what was used.
export function chartsOf(histories) {
  const names = new Set(histories.flat().flatMap(({ tasks }) => Object.values(tasks).flatMap((task) => Object.keys(task.metrics ?? {}))));
  const metrics = [...names].sort((a, b) => (b === "loss") - (a === "loss")).slice(0, MOST_METRICS);
  return [
    ...metrics.map((name) => ({ title: name, valueOf: (task) => task.metrics?.[name], format: significant })),
    { title: "Steps per second", valueOf: (task) => task.steps_per_second, format: rate },
    ...USED.map((chart) => ({ ...chart, valueOf: (task) => task[chart.field] })),
  ];
}

export class Charts {
  constructor(run, task = null, linkOf = null) {
    Object.assign(this, { run, task, linkOf, samples: [], lastTime: 0, isReady: false, marks: [] });
    this.curves = new Curves({ axes: { time: "over time", step: "over steps" }, height: 132 });
    this.none = h("p", { className: "note" }, "No charts: what tasks report and use is recorded from their third second on.");
    this.element = h("div", {}, this.curves.element, this.none);
    this.load();
  }

  async load() {
    const recorded = await historyOf(this.run).catch(() => []); // the stream says why
    const last = recorded.at(-1)?.time ?? 0;
    this.samples = [...recorded, ...this.samples.filter((sample) => sample.time > last)];
    this.isReady = true;
    this.draw();
  }

  // Add what a status tells, between the moments that are recorded, too.
  add(status) {
    if (status.exit_code !== null || status.supervisor !== "alive" || status.now - this.lastTime < 0.9) return;
    const tasks = named(status.tasks.filter((task) => task.cpu_percent !== null).map((task) => [task.task, task]));
    if (!Object.keys(tasks).length && !Object.keys(this.samples.at(-1)?.tasks ?? {}).length) return; // of a gap, one
    this.lastTime = status.now;
    this.samples.push({ time: status.now, tasks });
    const old = MOST_SAMPLES / 2;
    if (this.samples.length > MOST_SAMPLES) this.samples.splice(0, old, ...this.samples.slice(0, old).filter((_, at) => at % 2));
    if (this.isReady) this.draw();
  }

  // Mark where all tasks began again, and what happened to hosts and by drills.
  mark(timeline) {
    const disturbed = timeline.marks.filter(({ kind }) => kind !== "checkpoint").map(({ time }) => ({ time, text: "" }));
    this.marks = timeline.attempts.slice(1).map(({ attempt, started }) => ({ time: started, text: `attempt ${attempt}` })).concat(disturbed);
    if (this.isReady) this.draw();
  }

  draw() {
    const names = this.task ? [this.task] : [...new Set(this.samples.flatMap((sample) => Object.keys(sample.tasks)))].sort(byName);
    this.none.hidden = this.samples.length > 1;
    this.curves.element.hidden = this.samples.length < 2;
    if (this.samples.length < 2) return;
    const times = this.samples.map((sample) => sample.time);
    const overTime = ({ valueOf }, name) => [times, this.samples.map(({ tasks }) => (tasks[name] ? valueOf(tasks[name]) ?? null : null))];
    const curveOf = (chart, name) => (this.curves.over === "time" ? overTime(chart, name) : overSteps(this.samples, name, chart.valueOf));
    this.curves.set(names, chartsOf([this.samples]), curveOf, { marks: this.marks, linkOf: this.linkOf });
  }

  repaint() {
    this.curves.repaint();
  }

  close() {
    this.curves.close();
  }
}

// The points of a task's curve over its steps; of a step that was repeated, the last one.
export function overSteps(samples, name, valueOf) {
  const points = new Map();
  for (const { tasks } of samples) {
    const value = tasks[name] ? valueOf(tasks[name]) : null;
    if (typeof value === "number" && typeof tasks[name].step === "number") points.set(tasks[name].step, value);
  }
  const sorted = [...points].sort((a, b) => a[0] - b[0]);
  return [sorted.map(([at]) => at), sorted.map(([, value]) => value)];
}

const byName = (a, b) => a.localeCompare(b, "en", { numeric: true });
