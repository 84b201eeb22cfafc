// The output of tasks, merged by time: it follows, and it can be searched.
import { apiOf, get } from "./data.js";
import { VirtualList, clock, h, setText } from "./parts.js";

const MOST = 50000;

export class Logs {
  constructor(run, task = null) {
    Object.assign(this, { run, task, lines: [], found: null, wanted: "", isFollowing: true });
    this.note = h("span", { className: "note", role: "status" });
    this.search = h("input", {
      type: "search", placeholder: "Filter lines; Enter searches the whole log", "aria-label": "Filter lines",
      oninput: () => this.filter(),
      onkeydown: (event) => event.key === "Enter" && this.searchAll(),
    });
    this.follow = h("button", { title: "Follow (f)", onclick: () => this.setFollow(!this.isFollowing) }, "Follow");
    this.list = new VirtualList({
      rowHeight: 20, label: "Log",
      create: () => h("div", {}, h("time"), task ? "" : h("b"), h("span")),
      update: (row, line) => this.fill(row, line),
    });
    this.list.element.addEventListener("wheel", (event) => event.deltaY < 0 && this.setFollow(false), { passive: true });
    this.list.element.addEventListener("keydown", (event) => {
      if (["ArrowUp", "PageUp", "Home"].includes(event.key)) this.setFollow(false);
    });
    this.none = h("p", { className: "empty" }, "No output yet.");
    this.cut = h("p", { className: "note", hidden: true }, "Earlier lines are left out here: Enter in the filter searches them, too, and Files has the whole log.");
    this.element = h("section", { className: `logs${task ? " single" : ""}`, "aria-label": "Logs" },
      h("div", { className: "bar" }, this.search, this.note, h("span", { className: "grow" }), this.follow),
      this.cut, this.list.element, this.none);
    this.setFollow(true);
  }

  get selection() {
    return this.task ?? "*";
  }

  reset() {
    this.lines = [];
    this.cut.hidden = true;
    this.draw();
  }

  add(lines) {
    for (const line of lines) this.lines.push(line);
    if (this.lines.length > MOST) {
      this.lines.splice(0, this.lines.length - MOST);
      this.tellCut();
    }
    if (!this.found) this.draw();
  }

  tellCut() {
    this.cut.hidden = false;
  }

  filter() {
    this.wanted = this.search.value.toLowerCase();
    this.found = null;
    this.draw();
  }

  async searchAll() {
    if (!this.wanted) return;
    this.note.textContent = "searching …";
    const query = new URLSearchParams({ text: this.search.value, logs: this.selection });
    try {
      const { lines, has_more: hasMore } = await get(`${apiOf(this.run)}/search?${query}`);
      this.found = lines;
      this.setFollow(false);
      this.draw(`${lines.length}${hasMore ? " last" : ""} lines of the whole log`);
    } catch (error) {
      this.note.textContent = error.message;
    }
  }

  draw(note = null) {
    const all = this.found ?? this.lines;
    const shown = this.wanted && !this.found ? all.filter((line) => line[3].toLowerCase().includes(this.wanted)) : all;
    this.note.textContent = note ?? (this.wanted ? `${shown.length} of ${all.length} lines` : "");
    setText(this.none, this.wanted ? "No line matches." : "No output yet.");
    this.none.hidden = shown.length > 0;
    this.list.element.hidden = !shown.length;
    this.list.set(shown);
    if (this.isFollowing) this.list.toEnd();
  }

  fill(row, [time, task, attempt, text]) {
    if (row.line === text && row.time === time && row.wanted === this.wanted && row.task === task) return;
    Object.assign(row, { line: text, time, wanted: this.wanted, task });
    const [at, ...rest] = row.children;
    at.textContent = time ? clock(time) : "";
    at.title = `attempt ${attempt}`;
    if (rest.length > 1) rest[0].textContent = task;
    const place = rest.at(-1);
    row.classList.toggle("grave", /^(Traceback \(|\w*(Error|Exception)\b)/.test(text));
    const start = this.wanted ? text.toLowerCase().indexOf(this.wanted) : -1;
    if (start < 0) place.textContent = text;
    else {
      const end = start + this.wanted.length;
      place.replaceChildren(text.slice(0, start), h("mark", {}, text.slice(start, end)), text.slice(end));
    }
  }

  setFollow(isFollowing) {
    this.isFollowing = isFollowing;
    this.follow.setAttribute("aria-pressed", String(isFollowing));
    if (isFollowing) this.list.toEnd();
  }

  close() {
    this.list.close();
  }
}
