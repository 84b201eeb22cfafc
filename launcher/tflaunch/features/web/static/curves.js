// Charts that are read together: one colour for each name, one pointer, one range, smoothing and scale for all of them.
import { clock, duration, h, setText, show } from "./parts.js";

const MOST_LINES = 12; // of more, the range and the median are shown
const MOST_TOLD = 3; // curves whose values are all said under the pointer
const FEW = 40; // points of a curve, which are shown then
// Between the times of an axis. None is more than twice the one before it, so that at least two times have room.
const SECONDS = [1, 2, 3, 4, 5, 10, 15, 20, 30, 60, 120, 180, 300, 600, 1200, 1800, 3600, 7200, 14400, 28800, 43200, 86400, 172800, 345600, 604800];
const SPREAD = ["lowest", "median", "highest"];
const KEYS = { "+": 0.5, "=": 0.5, "-": 2 };
let boards = 0;

export class Curves {
  // `axes` are what curves can be drawn over, {name: words}; "time" is one of seconds since the epoch.
  constructor({ axes, height }) {
    Object.assign(this, { height, plots: new Map(), hidden: new Set(), range: null, given: null, key: `curves ${(boards += 1)}` });
    const input = (label, element) => h("label", {}, h("span", {}, label), element);
    this.axis = h("select", { "aria-label": "Over", onchange: () => { this.range = null; this.draw(); } }, Object.entries(axes).map(([value, words]) => h("option", { value }, words)));
    this.smoothing = h("input", { type: "range", min: 0, max: 0.98, step: 0.02, value: 0, "aria-label": "Smoothing", oninput: () => this.draw() });
    this.log = h("button", { "aria-pressed": "false", onclick: () => this.toggleLog() }, "Log scale");
    this.whole = h("button", { onclick: () => this.zoom(null), title: "Drag over a chart to zoom; a double click or 0 shows all" }, "Show all");
    this.legend = h("div", { className: "legend" });
    this.bar = h("div", { className: "bar" }, this.legend, h("span", { className: "grow" }), this.whole, this.axis, input("Smoothing", this.smoothing), this.log);
    this.grid = h("div", { className: "charts" });
    this.element = h("section", { "aria-label": "Charts", className: "curves" }, this.bar, this.grid);
    this.observer = new ResizeObserver(() => this.resize());
    this.observer.observe(this.grid);
  }

  get over() {
    return this.axis.value;
  }

  // Draw `charts`, {title, format, steps}, of curves called `names`; `curveOf(chart, name)` are its points, [x, y].
  // `marks` are {time, text}, `linkOf(name)` is where a name leads. What has no points is not shown.
  set(names, charts, curveOf, { marks = [], linkOf = null } = {}) {
    this.given = { names, charts, curveOf, marks, linkOf };
    this.draw();
  }

  draw() {
    if (!this.given) return;
    const { names, charts, curveOf } = this.given;
    const [used, drawn] = [new Set(), new Set()];
    for (const chart of charts) {
      const curves = names.map((name) => curveOf(chart, name));
      const known = curves.map(([, y]) => y.some(isNumber));
      names.forEach((name, at) => known[at] && used.add(name));
      if (!known.some(Boolean)) continue;
      drawn.add(chart.title);
      this.plot(chart, names, curves, known);
    }
    for (const [title, { plot, box }] of this.plots) if (!drawn.has(title)) { plot.destroy(); box.remove(); this.plots.delete(title); }
    const boxes = [...drawn].map((title) => this.plots.get(title).box);
    if (boxes.some((box, at) => box !== this.grid.children[at])) this.grid.append(...boxes); // one came after those below it
    this.bar.hidden = this.grid.hidden = !drawn.size;
    this.whole.hidden = !this.range;
    this.drawLegend(names.filter((name) => used.has(name)));
  }

  drawLegend(names) {
    const { names: all, linkOf } = this.given;
    if (all.length > MOST_LINES) return setText(this.legend, `Range and median of ${names.length}`);
    const signature = names.join();
    if (this.legend.signature === signature) return;
    this.legend.signature = signature;
    this.legend.replaceChildren(...names.map((name) => h("span", {},
      h("button", { className: "swatch", "aria-pressed": String(!this.hidden.has(name)), "aria-label": `Curves of ${name}`, title: "Show or hide", onclick: (event) => this.toggle(name, event.currentTarget) },
        h("i", { style: `background: ${all.length > 1 ? hueOf(all.indexOf(name), all.length) : "var(--accent)"}` })),
      linkOf ? h("a", { href: linkOf(name) }, name) : name)));
  }

  toggle(name, button) {
    if (!this.hidden.delete(name)) this.hidden.add(name);
    button.setAttribute("aria-pressed", String(!this.hidden.has(name)));
    this.draw();
  }

  toggleLog() {
    this.log.setAttribute("aria-pressed", String(!this.isLog));
    this.draw();
  }

  get isLog() {
    return this.log.getAttribute("aria-pressed") === "true";
  }

  plot(chart, names, curves, known) {
    const isSpread = names.length > MOST_LINES;
    const [x, ...lines] = joined(curves);
    const raw = isSpread ? spread(lines.filter((_, at) => known[at])) : lines;
    const weight = Number(this.smoothing.value);
    const data = [x, ...raw.map((line) => smoothed(line, weight))];
    if (weight && !isSpread) data.push(...raw);
    const isLog = this.isLog && data.slice(1).every((line) => line.every((value) => !isNumber(value) || value > 0));
    const labels = isSpread ? SPREAD : names;
    const isFew = x.length < FEW;
    const signature = [isLog, Boolean(weight), this.over, isFew, ...labels].join();
    const before = this.plots.get(chart.title);
    if (before?.signature === signature) before.plot.setData(data);
    else this.make(chart, { labels, isSpread, isLog, isFew, signature, hasRaw: Boolean(weight) && !isSpread }, data, before);
    const made = this.plots.get(chart.title);
    if (!isSpread) labels.forEach((name, at) => this.showLine(made.plot, at, labels.length));
    if (made.plot.cursor.idx === null || made.plot.cursor.idx === undefined) this.tell(made, null);
  }

  showLine(plot, at, number) {
    const isShown = !this.hidden.has(plot.series[at + 1].label);
    for (const series of [at + 1, at + 1 + number]) if (plot.series[series] && plot.series[series].show !== isShown) plot.setSeries(series, { show: isShown });
  }

  make(chart, about, data, before) {
    before?.plot.destroy();
    const made = before ?? this.figure(chart);
    Object.assign(made, about, { chart, over: this.over });
    this.plots.set(chart.title, made);
    made.plot = new uPlot(this.options(made), data, made.place);
  }

  figure(chart) {
    const value = h("span", { className: "value" });
    const place = h("div", { className: "plot" });
    place.style.height = `${this.height}px`;
    const box = h("figure", { className: "chart", tabIndex: 0, "aria-label": chart.title, onkeydown: (event) => this.onKey(chart.title, event) }, h("figcaption", {}, h("span", { className: "name" }, chart.title), value), place);
    const made = { value, place, box };
    box.addEventListener("focus", () => {
      this.pointed = made;
      value.setAttribute("aria-live", "polite");
    });
    box.addEventListener("blur", () => value.removeAttribute("aria-live"));
    box.addEventListener("pointerenter", () => (this.pointed = made));
    this.grid.append(box);
    return made;
  }

  options(made) {
    const { labels, isSpread, isLog, chart } = made;
    const accent = () => colour("--accent");
    const isOne = labels.length === 1;
    const stroke = (at) => (isOne || isSpread ? accent : hueOf(at, labels.length));
    const line = (label, at) => ({ label, stroke: stroke(at), width: isSpread && at !== 1 ? 0 : 1.5, points: { show: made.isFew && !isSpread, size: 4 } });
    const faint = (label, at) => ({ label: `${label}, as it was`, stroke: stroke(at), width: 1, alpha: 0.25, points: { show: false } });
    const axis = { stroke: () => colour("--muted"), grid: { stroke: () => colour("--line"), width: 1 }, ticks: { show: false }, font: "11px system-ui" };
    const words = (_, ticks) => ticks.map((tick) => (tick === 0 ? "0" : tick === null ? "" : shortened(chart.format(tick))));
    return {
      width: this.widthOf(made), height: this.height, legend: { show: false }, focus: { alpha: 0.25 },
      cursor: {
        y: false, focus: { prox: 1e6 }, points: { size: 6 }, dataIdx: (_, series, at) => (series > labels.length ? null : at), drag: { x: true, y: false, setScale: false },
        sync: { key: this.key, setSeries: true, scales: ["x", null] }, bind: { dblclick: () => () => this.zoom(null) },
      },
      scales: {
        x: { time: this.over === "time", range: (_, low, high) => this.range ?? (low === high ? [low - 1, high + 1] : [low, high]) },
        y: isLog ? { distr: 3 } : { range: (_, low, high) => [Math.min(low ?? 0, 0), (high || 1) * (high < 0 ? 0.92 : 1.08)] },
      },
      bands: isSpread ? [{ series: [3, 1], fill: () => colour("--wash") }] : [],
      series: [{}, ...labels.map(line), ...(made.hasRaw ? labels.map(faint) : [])],
      axes: [
        { ...axis, size: 24, space: 54, ...(this.over === "step" ? {} : { incrs: SECONDS }), values: (_, ticks) => ticks.map((tick) => placeOf(this.over, tick)) },
        { ...axis, size: (_, ticks) => 16 + 7 * Math.max(4, ...(ticks ?? []).map((text) => text.length)), space: 36, values: words, ...(chart.steps && !isLog ? { incrs: chart.steps } : {}) },
      ],
      hooks: {
        setCursor: [(plot) => this.tell(made, plot.cursor.idx ?? null)],
        setSeries: [(_, at, { focus }) => focus === undefined || made !== this.pointed || this.focus(labels[at - 1])],
        setSelect: [(plot) => this.onSelect(plot)],
        draw: [(plot) => this.drawMarks(plot)],
      },
    };
  }

  onSelect(plot) {
    const { left, width } = plot.select;
    if (width < 4) return;
    const range = [plot.posToVal(left, "x"), plot.posToVal(left + width, "x")];
    plot.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
    this.zoom(range);
  }

  // Show a part of all charts, [first, last]; null for the whole.
  zoom(range) {
    this.range = range;
    this.draw();
  }

  drawMarks(plot) {
    if (this.over !== "time") return;
    const { ctx, bbox } = plot;
    ctx.save();
    ctx.strokeStyle = ctx.fillStyle = colour("--warn");
    ctx.font = `${10 * devicePixelRatio}px system-ui`;
    ctx.textAlign = "left";
    ctx.lineWidth = 1;
    ctx.setLineDash([4 * devicePixelRatio, 3 * devicePixelRatio]);
    for (const { time, text } of this.given.marks) {
      const at = Math.round(plot.valToPos(time, "x", true)) + 0.5;
      if (at < bbox.left || at > bbox.left + bbox.width) continue;
      ctx.beginPath();
      ctx.moveTo(at, bbox.top);
      ctx.lineTo(at, bbox.top + bbox.height);
      ctx.stroke();
      ctx.fillText(text, at + 4 * devicePixelRatio, bbox.top + 9 * devicePixelRatio);
    }
    ctx.restore();
  }

  onKey(title, event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const { plot } = this.plots.get(title);
    const [x] = plot.data;
    const at = plot.cursor.idx ?? x.length - 1;
    const step = { ArrowLeft: -1, ArrowRight: 1, Home: -x.length, End: x.length }[event.key];
    if (step) this.point(plot, Math.min(Math.max(at + step, 0), x.length - 1));
    else if (event.key in KEYS) this.zoomAround(plot, x[at], KEYS[event.key]);
    else if (event.key === "0") this.zoom(null);
    else return;
    event.preventDefault();
    event.stopPropagation();
  }

  point(plot, at) {
    const left = Math.min(Math.max(plot.valToPos(plot.data[0][at], "x"), 0), plot.over.clientWidth);
    plot.setCursor({ left, top: 10 }, true, true);
  }

  zoomAround(plot, middle, factor) {
    const { min, max } = plot.scales.x;
    const [first, last] = [plot.data[0][0], plot.data[0].at(-1)];
    const range = [Math.max(middle - (middle - min) * factor, first), Math.min(middle + (max - middle) * factor, last)];
    this.zoom(range[0] === first && range[1] === last ? null : range);
  }

  // Tell in all charts the curve that is nearest to the pointer in one of them.
  focus(name) {
    this.focused = name;
    for (const made of this.plots.values()) this.tell(made, made.plot.cursor.idx ?? null);
  }

  // Say in words what is under the pointer, or else what was last.
  tell(made, pointed) {
    const { plot, chart, labels, value } = made;
    const [x, ...lines] = plot.data;
    const at = pointed ?? x.findLastIndex((_, index) => lines.some((line) => isNumber(line[index])));
    const known = labels.map((name, series) => [name, lines[series][at]]).filter(([name, found], series) => isNumber(found) && plot.series[series + 1].show);
    const when = pointed === null ? "" : `${placeOf(made.over, x[at])}  `;
    const focused = pointed === null ? undefined : this.focused;
    const numbers = known.map(([, number]) => number);
    const [low, high] = [Math.min(...numbers), Math.max(...numbers)].map((number) => (numbers.length ? chart.format(number) : "–"));
    const [, of] = known.find(([name]) => name === focused) ?? [];
    const told = ([name, number]) => h("span", { className: "of", title: name },
      h("i", { style: `background: ${hueOf(labels.indexOf(name), labels.length)}` }), h("span", { className: "unseen" }, ` ${name} `), chart.format(number));
    if (pointed !== null && known.length > 1 && known.length <= MOST_TOLD) show(value, when, known.map(told));
    else if (focused && labels.length > 1) setText(value, `${when}${focused} ${of === undefined ? "–" : chart.format(of)}${known.length > 1 ? `, of ${low} to ${high}` : ""}`);
    else setText(value, when + (low === high ? low : `${low} to ${high}`));
  }

  widthOf({ place }) {
    return Math.max(place.clientWidth || 300, 120);
  }

  resize() {
    for (const made of this.plots.values()) made.plot.setSize({ width: this.widthOf(made), height: this.height });
  }

  repaint() {
    for (const { plot } of this.plots.values()) plot.redraw();
  }

  close() {
    this.observer.disconnect();
    for (const { plot } of this.plots.values()) plot.destroy();
  }
}

const isNumber = (value) => typeof value === "number";
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name);
const shortened = (text) => text.replace("/s", "").replace(/(\.\d*?)0+$/, "$1").replace(/\.$/, "");
const hueOf = (at, number) => `hsl(${Math.round((at * 360) / number + 225)} 60% 52%)`;
const placeOf = (over, at) => (over === "time" ? clock(at).slice(0, 8) : over === "lasted" ? duration(at) : String(at));

function joined(curves) {
  const isShared = curves.every(([x]) => x === curves[0][0]);
  return isShared ? [curves[0][0], ...curves.map(([, y]) => y)] : uPlot.join(curves);
}

// The mean of a line so far, in which what was before counts `weight` times as much at each next point.
function smoothed(line, weight) {
  if (!weight) return line;
  let [sum, counted] = [0, 0];
  return line.map((value) => {
    if (!isNumber(value)) return value;
    sum = sum * weight + value;
    counted = counted * weight + 1;
    return sum / counted;
  });
}

// Lowest, median and highest of many lines.
function spread(lines) {
  const of = lines[0].map((_, at) => lines.map((line) => line[at]).filter(isNumber).sort((a, b) => a - b));
  return [0, 0.5, 1].map((part) => of.map((values) => values[Math.min(Math.floor(values.length * part), values.length - 1)] ?? null));
}
