// Who ran when, who failed and why: a bar for each attempt of each task, marks for what happened beside, and what was said.
import { VirtualList, clock, duration, h, show, tone } from "./parts.js";

const UNSAID = ["checkpoint", "fault"]; // of hosts, messages tell, too

export class Timeline {
  constructor(openTask, task = null) {
    this.task = task;
    this.axis = h("div", { className: "axis" });
    this.marks = h("div", { className: "axis marks" });
    this.attempts = h("ol", { className: "attempts" });
    this.messages = h("ol", { className: "messages" });
    this.list = new VirtualList({
      rowHeight: 26, label: "Attempts of tasks", open: (row) => openTask(row.task),
      create: () => h("div", {}, h("span"), h("div", { className: "lane" })),
      update: (row, item) => this.fill(row, item),
    });
    this.element = h("section", { className: "timeline", "aria-label": "Timeline" },
      this.attempts, h("div", { className: "gantt" }, this.axis, this.marks, this.list.element),
      task ? "" : h("h2", {}, "What happened"), task ? "" : this.messages);
  }

  set(timeline, status) {
    this.now = status.now;
    const spans = timeline.tasks.filter((span) => !this.task || span.task === this.task);
    const rows = new Map(status.tasks.filter((task) => !this.task || task.task === this.task).map((task) => [task.task, []]));
    for (const span of spans) rows.get(span.task)?.push(span);
    const isOver = status.exit_code !== null;
    const ends = timeline.tasks.map((span) => span.ended ?? this.now);
    this.start = Math.min(status.started, ...timeline.tasks.slice(0, 1).map((span) => span.started));
    this.end = Math.max(isOver ? Math.max(...ends, this.start) : this.now, this.start + 0.5);
    const whole = this.end - this.start;
    const ticks = [0, 0.25, 0.5, 0.75, 1].map((part) => duration(whole * part));
    show(this.axis, h("span", {}, clock(this.start, true)), h("div", {}, ticks.map((text, at) => h("i", { style: `left:${at * 25}%` }, text))));
    this.drawMarks(this.task ? [] : timeline.marks);
    const several = timeline.attempts.length > 1 || timeline.attempts.some((each) => each.reason);
    show(this.attempts, several && !this.task ? timeline.attempts.map((each) => h("li", {},
      h("b", {}, `Attempt ${each.attempt}`), ` ${clock(each.started)}, ${duration((each.ended ?? this.now) - each.started)}`,
      each.reason ? h("span", { className: "why" }, ` ${each.reason}`) : "")) : []);
    const bad = ([, of]) => (of.some((span) => ["failed", "lost"].includes(span.state)) ? 0 : 1);
    const items = [...rows].sort((a, b) => bad(a) - bad(b)).map(([task, of]) => ({ task, spans: of }));
    this.list.element.style.setProperty("--rows", Math.min(items.length, 20));
    this.list.set(items);
    const said = [...timeline.messages, ...timeline.marks.filter(({ kind }) => UNSAID.includes(kind)).map(({ time, text, kind }) => [time, kind === "fault" ? `fault: ${text}` : text])];
    said.sort((a, b) => a[0] - b[0]);
    if (!this.task) show(this.messages, said.map(([time, text]) => h("li", {}, h("time", {}, clock(time)), h("span", {}, text))));
  }

  drawMarks(marks) {
    this.marks.hidden = !marks.length;
    const placed = marks.map(({ time, kind, text }) => h("i", { className: kind, title: `${clock(time)} ${text}`, style: `left:${((time - this.start) / (this.end - this.start)) * 100}%` }));
    show(this.marks, h("span", {}, "Events"), h("div", { "aria-hidden": "true" }, placed)); // they are told below
  }

  fill(row, item) {
    const [name, lane] = row.children;
    if (name.textContent !== item.task) name.textContent = item.task;
    const width = this.end - this.start;
    show(lane, item.spans.map((span) => {
      const end = span.ended ?? this.now;
      const words = `attempt ${span.attempt}: ${span.state} after ${duration(end - span.started)}${span.reason ? `, ${span.reason}` : ""}`;
      const bar = h("i", { className: tone(span.state), title: words }, span.state === "failed" ? span.reason ?? "failed" : span.state);
      bar.style.left = `${((span.started - this.start) / width) * 100}%`;
      bar.style.width = `max(3px, ${((end - span.started) / width) * 100}%)`;
      return bar;
    }));
  }

  close() {
    this.list.close();
  }
}
