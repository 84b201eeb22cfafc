// Building blocks: elements, words for numbers, dialogs, and lists that hold only the rows in view.

export function h(tag, props = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name in element && name !== "list") element[name] = value;
    else if (value !== null && value !== undefined && value !== false) element.setAttribute(name, value);
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

// Replace what is in an element only if it reads differently: a selection and the focus outlive most updates.
export function show(element, ...children) {
  const fresh = h(element.tagName, {}, ...children);
  if (fresh.innerHTML !== element.innerHTML) element.replaceChildren(...fresh.childNodes);
}

// The next three write what `tflaunch_worker/readable.py` does: a test compares them.
export function duration(seconds) {
  if (seconds > 0 && seconds < 0.05) return `${Math.floor(seconds * 1000 + 0.5)} ms`;
  if (seconds < 9.95) return `${Math.floor(Math.max(seconds, 0) * 10 + 0.5) / 10} s`;
  const whole = Math.floor(seconds + 0.5);
  for (const [size, unit, part, rest, digits] of [[86400, "d", 3600, "h", 1], [3600, "h", 60, "min", 2], [60, "min", 1, "s", 2]]) {
    const parts = Math.floor((whole % size) / part);
    if (whole >= size) return `${Math.floor(whole / size)} ${unit}${parts ? ` ${String(parts).padStart(digits, "0")} ${rest}` : ""}`;
  }
  return `${whole} s`;
}

export function ago(seconds) {
  for (const [size, unit] of [[86400, "d"], [3600, "h"], [60, "min"]]) {
    if (seconds >= 2 * size) return `${Math.floor(seconds / size)} ${unit} ago`;
  }
  return `${Math.max(Math.floor(seconds), 0)} s ago`;
}

const SIGNALS = ("HUP INT QUIT ILL TRAP ABRT BUS FPE KILL USR1 SEGV USR2 PIPE ALRM TERM STKFLT CHLD CONT STOP TSTP TTIN"
  + " TTOU URG XCPU XFSZ VTALRM PROF WINCH IO PWR SYS - - RTMIN").split(" "); // by number
export const signalName = (number) => (SIGNALS[number - 1]?.length > 1 ? `SIG${SIGNALS[number - 1]}` : number === 64 ? "SIGRTMAX" : `signal ${number}`);

export function memory(size) {
  if (size === null || size === undefined) return "";
  const units = ["", "K", "M", "G", "T", "P"];
  let power = 0;
  while (size >= 1000 && power < units.length - 1) [size, power] = [size / 1024, power + 1];
  return (size > 0 && size < 10 && power ? size.toFixed(1) : size.toFixed(0)) + units[power];
}

export const count = (value) => (value === null || value === undefined ? "" : Math.round(value).toString());
export const percent = (value) => (value === null || value === undefined ? "" : `${Math.round(value)}%`);

export function rate(value) {
  if (value === null || value === undefined) return "";
  return value >= 100 ? `${value.toFixed(0)}/s` : `${value.toPrecision(3)}/s`;
}

export function significant(value) {
  if (value === null || value === undefined) return "";
  if (value && (Math.abs(value) < 0.001 || Math.abs(value) >= 1e7)) return value.toExponential(2);
  return Math.abs(value) < 1000 ? value.toPrecision(4) : value.toFixed(0);
}

export function clock(time, withDate = false) {
  const at = new Date(time * 1000);
  const words = at.toLocaleTimeString([], { hour12: false });
  return withDate ? `${at.toLocaleDateString([], { day: "numeric", month: "short" })} ${words}` : words;
}

// Begin a sentence with a capital, but leave the name of a task as it is.
export const capital = (text) => (/^\S*:/.test(text) ? text : text[0].toUpperCase() + text.slice(1));

export const counted = (number, noun) => `${number} ${noun}${number === 1 ? "" : "s"}`;

// Equal names once, with their number: "2 × NVIDIA A100".
export function tallied(names) {
  const numbers = new Map();
  for (const name of names ?? []) numbers.set(name, (numbers.get(name) ?? 0) + 1);
  return [...numbers].map(([name, number]) => (number === 1 ? name : `${number} × ${name}`)).join(", ");
}

const TONES = {
  good: ["succeeded"],
  bad: ["failed", "lost", "unreadable", "down"],
  busy: ["running", "connected", "first step", "training", "evaluating"],
  warn: ["starting", "waiting", "stopping", "restarting", "disconnected", "not listening", "joining", "preparing",
    "saving", "draining", "backing_off", "waiting for hosts", "waiting_for_hosts", "leaving", "queued", "forming",
    "hanging", "ending"],
};

export function tone(state) {
  return Object.keys(TONES).find((name) => TONES[name].includes(state)) ?? "calm";
}

export const stateOf = (task) => (task.state === "waiting" && task.listening === false ? "not listening" : task.state);

export function badge(state, text = state) {
  return h("span", { className: `badge ${tone(state)}` }, text.replaceAll("_", " "));
}

// Write a state into a badge that exists already.
export function setBadge(element, state) {
  setText(element, state.replaceAll("_", " "));
  element.className = `badge ${tone(state)}`;
}

export function copyable(command) {
  const button = h("button", {
    className: "copy", title: "Copy",
    onclick: async () => {
      await navigator.clipboard.writeText(command);
      button.textContent = "copied";
      setTimeout(() => (button.textContent = "copy"), 1500);
    },
  }, "copy");
  return h("span", { className: "command" }, h("code", {}, command), button);
}

export function dialog(title, body, actions = []) {
  const box = h("dialog", { onclose: () => box.remove(), "aria-label": title },
    h("form", { method: "dialog" },
      h("h2", {}, title), ...body,
      h("div", { className: "actions" },
        h("button", { value: "", autofocus: !actions.length }, actions.length ? "Cancel" : "Close"), ...actions)));
  document.body.append(box);
  box.showModal();
  return box;
}

// Ask before `act`; its error is shown where it was asked.
export function confirmed(title, sentence, verb, act, { extra = [], isHarmless = false } = {}) {
  const trouble = h("p", { className: "trouble", role: "alert" });
  const button = h("button", {
    type: "button", className: isHarmless ? "" : "danger",
    onclick: async () => {
      button.disabled = true;
      try {
        await act();
        box.close();
      } catch (error) {
        trouble.textContent = error.message;
        button.disabled = false;
      }
    },
  }, verb);
  const box = dialog(title, [h("p", {}, sentence), ...extra, trouble], [button]);
  button.focus();
}

const PRINT = ["beforeprint", "afterprint"];
const MOST_PRINTED = 2000; // rows
let lists = 0;

// A list of any length in which only the rows in view exist: `create()` makes a row, `update(row, item, index)` fills it.
// With a `head` it is a grid for a screen reader.
export class VirtualList {
  constructor({ rowHeight, create, update, open = null, label, head = null }) {
    Object.assign(this, { rowHeight, create, update, open, head, items: [], rows: [], chosen: -1, id: `list-${(lists += 1)}` });
    this.headHeight = head ? rowHeight : 0;
    this.space = h("div", { className: "space", role: head ? "rowgroup" : "presentation" });
    this.element = h("div", { className: "virtual", tabIndex: 0, role: head ? "grid" : "list", "aria-label": label }, head && h("div", { role: "rowgroup" }, head), this.space);
    this.element.addEventListener("scroll", () => this.draw(), { passive: true });
    this.element.addEventListener("keydown", (event) => this.key(event));
    this.observer = new ResizeObserver(() => this.draw());
    this.observer.observe(this.element);
    this.print = ({ type }) => this.draw(type === "beforeprint");
    for (const type of PRINT) addEventListener(type, this.print);
  }

  set(items) {
    this.items = items;
    this.space.style.height = `${items.length * this.rowHeight}px`;
    if (this.head) this.element.setAttribute("aria-rowcount", items.length + 1);
    this.draw();
  }

  draw(isPrinted = false) {
    const top = this.element.scrollTop;
    const first = isPrinted ? 0 : Math.max(Math.floor(top / this.rowHeight) - 4, 0);
    const shown = isPrinted ? MOST_PRINTED : Math.ceil((top + this.element.clientHeight) / this.rowHeight) + 4;
    const last = Math.min(shown, this.items.length);
    while (this.rows.length < last - first) {
      const row = this.create();
      row.classList.add("row");
      row.id = `${this.id}-${this.rows.length}`;
      row.role = this.head ? "row" : "listitem";
      if (this.open) row.addEventListener("click", (event) => {
        if (!event.target.closest("a, button, input") && !this.items[row.at].group) this.open(this.items[row.at]);
      });
      this.rows.push(row);
      this.space.append(row);
    }
    this.rows.forEach((row, slot) => {
      const at = first + slot;
      row.hidden = at >= last;
      if (row.hidden) return;
      row.at = at;
      row.style.transform = `translateY(${at * this.rowHeight}px)`;
      row.setAttribute(this.head ? "aria-rowindex" : "aria-posinset", at + (this.head ? 2 : 1));
      if (!this.head) row.setAttribute("aria-setsize", this.items.length);
      row.classList.toggle("chosen", at === this.chosen);
      this.update(row, this.items[at], at);
    });
  }

  choose(at) {
    this.chosen = Math.min(Math.max(at, 0), this.items.length - 1);
    const top = this.chosen * this.rowHeight;
    if (top < this.element.scrollTop) this.element.scrollTop = top;
    const below = top + this.rowHeight + this.headHeight - this.element.clientHeight;
    if (below > this.element.scrollTop) this.element.scrollTop = below;
    this.draw();
    const row = this.rows.find(({ hidden, at: shown }) => !hidden && shown === this.chosen);
    if (this.head && row) this.element.setAttribute("aria-activedescendant", row.id);
  }

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || !this.open) return;
    const steps = { ArrowDown: 1, j: 1, ArrowUp: -1, k: -1, PageDown: 15, PageUp: -15 };
    if (event.key in steps) this.choose(this.chosen + steps[event.key]);
    else if (event.key === "Enter" && this.chosen >= 0 && !this.items[this.chosen].group) this.open(this.items[this.chosen]);
    else return;
    event.preventDefault();
    event.stopPropagation();
  }

  get atEnd() {
    const { scrollTop, clientHeight, scrollHeight } = this.element;
    return scrollTop + clientHeight >= scrollHeight - this.rowHeight;
  }

  toEnd() {
    this.element.scrollTop = this.element.scrollHeight;
    this.draw();
  }

  close() {
    this.observer.disconnect();
    for (const type of PRINT) removeEventListener(type, this.print);
  }
}

// A table of any length: columns are {title, width, cell(item), sort(item), wide, number, badge, href(item)}, or with boxes
// {title, label, width, checked(item), check(item, isChecked)}. `groupOf(item)` is what items are grouped by, null for none.
export class Table {
  constructor({ columns, open, label, empty }) {
    Object.assign(this, { columns, empty, items: [], order: null, down: false, groupOf: null });
    this.template = columns.map((column) => column.width).join(" ");
    this.narrow = columns.filter((column) => !column.wide).map((column) => column.width).join(" ");
    const classes = (column) => [column.wide && "wide", column.number && "number"].filter(Boolean).join(" ");
    this.head = h("div", { className: "row head", role: "row" }, columns.map((column) =>
      h("span", { className: classes(column), role: "columnheader" },
        column.cell ? h("button", { onclick: () => this.sortBy(column) }, column.title) : h("span", { className: "unseen" }, column.label))));
    const filled = (column, row) => {
      if (column.href) return h("a");
      if (!column.check) return column.badge ? h("span") : "";
      return h("input", { type: "checkbox", onchange: (event) => column.check(this.list.items[row().at], event.target.checked) });
    };
    this.list = new VirtualList({
      rowHeight: 34, open, label, head: this.head,
      create: () => {
        const row = h("div", {}, columns.map((column) => h("span", { className: classes(column), role: "gridcell" }, filled(column, () => row))));
        row.append(h("b", { className: "group", role: "gridcell" }));
        return row;
      },
      update: (row, item) => columns.forEach((column, at) => {
        const cell = row.children[at];
        row.classList.toggle("grouped", Boolean(item.group));
        if (item.group) return setText(row.lastChild, `${item.group} · ${counted(item.number, "run")}`);
        if (column.check) {
          cell.firstChild.checked = column.checked(item);
          return cell.firstChild.setAttribute("aria-label", `${column.label} ${columns[at + 1].cell(item)}`);
        }
        const text = column.cell(item) ?? "";
        if (column.badge) setBadge(cell.firstChild, text);
        else setText(column.href ? cell.firstChild : cell, text);
        if (column.href) cell.firstChild.href = column.href(item);
        if (column.hint) cell.title = text;
      }),
    });
    this.none = h("p", { className: "empty" }, empty);
    this.element = h("div", { className: "table" }, this.list.element, this.none);
    this.element.style.setProperty("--columns", this.template);
    this.element.style.setProperty("--narrow", this.narrow);
  }

  sortBy(column) {
    if (this.order === column) this.down = !this.down;
    else [this.order, this.down] = [column, Boolean(column.number)];
    this.drawOrder();
    this.list.element.scrollTop = 0;
    this.set(this.items);
  }

  // Sort by the same column, in the same direction, as another table.
  orderAs(other) {
    this.order = this.columns.find((column) => column.title === other?.order?.title) ?? null;
    this.down = other?.down ?? false;
    this.drawOrder();
  }

  drawOrder() {
    [...this.head.children].forEach((title, at) => {
      title.setAttribute("aria-sort", this.columns[at] === this.order ? (this.down ? "descending" : "ascending") : "none");
    });
  }

  set(items) {
    this.items = items;
    let shown = items;
    if (this.order) {
      const of = this.order.sort ?? this.order.cell;
      const sign = this.down ? -1 : 1;
      shown = [...items].sort((a, b) => {
        const [x, y] = [of(a) ?? "", of(b) ?? ""];
        if (x === y) return 0;
        if (x === "" || y === "") return x === "" ? 1 : -1; // what is not known comes last in both directions
        return (typeof x === typeof y ? (x < y ? -1 : 1) : typeof x === "number" ? 1 : -1) * sign;
      });
    }
    if (this.groupOf) {
      const groups = new Map();
      for (const item of shown) groups.set(this.groupOf(item), [...(groups.get(this.groupOf(item)) ?? []), item]);
      shown = [...groups].flatMap(([group, members]) => [{ group: group || "without a name", number: members.length }, ...members]);
    }
    this.none.hidden = items.length > 0;
    this.list.element.hidden = items.length === 0;
    this.list.element.style.setProperty("--rows", Math.min(shown.length, 16));
    this.list.set(shown);
  }

  close() {
    this.list.close();
  }
}
