// A flame graph of sampled stacks: the width of a frame is its share of the samples, and what it called is below it.
import { getText } from "./data.js";
import { counted, h, setText } from "./parts.js";

const ROW = 21; // pixels
const LEAST_SHARE = 0.001; // of what is shown: narrower frames are not drawn
const MOST_FRAMES = 4000;
const DEEPEST = 200;
const ROOT = "all threads";

// Read folded stacks (frames separated by ";", then a space and a count) as a tree of {name, value, children, parent, depth}.
export function framesOf(text) {
  const make = (name, parent) => ({ name, value: 0, children: new Map(), parent, depth: parent ? parent.depth + 1 : 0 });
  const root = make(ROOT, null);
  for (const line of text.split("\n").filter(Boolean)) {
    const [, stack, count] = /^(.*) ([1-9]\d{0,11})$/.exec(line) ?? [];
    if (stack === undefined) throw new Error("This file does not have the form of sampled stacks.");
    let node = root;
    root.value += Number(count);
    for (const name of stack.split(";").slice(0, DEEPEST)) {
      if (!node.children.has(name)) node.children.set(name, make(name, node));
      node = node.children.get(name);
      node.value += Number(count);
    }
  }
  return root;
}

export class Flame {
  constructor(title, path, close) {
    Object.assign(this, { title, root: null, zoomed: null, shown: new Map() });
    const about = { type: "search", placeholder: "Find a function", "aria-label": "Find a function" };
    this.search = h("input", { ...about, oninput: () => this.mark() });
    this.whole = h("button", { hidden: true, onclick: () => this.zoom(this.root) }, "Whole profile");
    this.heading = h("h2", {}, title);
    this.about = h("p", { className: "note", role: "status" }, "Reading …");
    this.graph = h("div", { className: "frames", role: "group", "aria-label": `Flame graph of ${title}` });
    this.element = h("section", { className: "flame", "aria-label": "Flame graph" },
      h("div", { className: "bar" },
        this.heading, h("span", { className: "grow" }), this.search, this.whole, h("button", { onclick: close }, "Close")),
      this.about, this.graph);
    this.graph.addEventListener("click", (event) => this.at(event, (node) => this.zoom(node)));
    this.graph.addEventListener("mouseover", (event) => this.at(event, (node) => this.tell(node)));
    this.graph.addEventListener("focusin", (event) => this.at(event, (node) => this.tell(node)));
    this.graph.addEventListener("mouseleave", () => this.mark());
    this.graph.addEventListener("keydown", (event) => this.key(event));
    this.load(path);
  }

  async load(path) {
    try {
      this.root = framesOf(await getText(path));
    } catch (error) {
      setText(this.about, error.message);
      return;
    }
    const samples = Math.max(0, ...[...this.root.children.values()].map((thread) => thread.value));
    setText(this.heading, `${this.title}: ${counted(samples, "sample")}`);
    this.zoom(this.root);
  }

  at(event, act) {
    const node = this.shown.get(event.target.closest("button"));
    if (node) act(node);
  }

  zoom(node) {
    const hadFocus = this.graph.contains(document.activeElement) || document.activeElement === this.whole;
    this.zoomed = node;
    this.whole.hidden = node === this.root;
    this.draw();
    if (hadFocus) this.focus(node);
  }

  draw() {
    this.shown.clear();
    const above = [];
    for (let node = this.zoomed.parent; node; node = node.parent) above.unshift(node);
    above.forEach((node) => this.place(node, 0, 1, "above"));
    let depth = this.zoomed.depth;
    const waiting = [[this.zoomed, 0]];
    while (waiting.length && this.shown.size < MOST_FRAMES) {
      const [node, left] = waiting.shift();
      const width = node.value / this.zoomed.value;
      if (width < LEAST_SHARE) continue;
      this.place(node, left, width, "");
      depth = Math.max(depth, node.depth);
      let begin = left;
      for (const child of largestFirst(node)) {
        waiting.push([child, begin]);
        begin += child.value / this.zoomed.value;
      }
    }
    this.graph.style.height = `${(depth + 1) * ROW}px`;
    this.graph.replaceChildren(...this.shown.keys());
    this.graph.firstChild.tabIndex = 0;
    this.mark();
  }

  place(node, left, width, kind) {
    const words = this.words(node);
    const button = h("button", { className: kind, tabIndex: -1, title: words, "aria-label": words }, node.name);
    Object.assign(button.style, { left: `${left * 100}%`, width: `calc(${width * 100}% - 1px)`, top: `${node.depth * ROW}px` });
    button.style.setProperty("--hue", hueOf(node.name));
    this.shown.set(button, node);
  }

  words(node) {
    return `${node.name}: ${share(node.value, this.root.value)}, ${counted(node.value, "sample")}`;
  }

  tell(node) {
    const ofShown = this.zoomed === this.root ? "" : `; ${share(node.value, this.zoomed.value)} of ${this.zoomed.name}`;
    setText(this.about, this.words(node) + ofShown);
  }

  // Mark what the search finds, and say how many of all samples are in it.
  mark() {
    const wanted = this.search.value.toLowerCase();
    const isFound = (node) => Boolean(wanted) && node.name.toLowerCase().includes(wanted);
    this.graph.classList.toggle("searched", Boolean(wanted));
    for (const [button, node] of this.shown) button.classList.toggle("found", isFound(node));
    if (!this.root) return;
    const sumOf = (nodes) => nodes.reduce((sum, node) => sum + (isFound(node) ? node.value : sumOf([...node.children.values()])), 0);
    const found = wanted ? sumOf([this.root]) : 0;
    const hits = found ? `${share(found, this.root.value)} of the samples are in what was found.` : "No function matches.";
    setText(this.about, wanted ? hits : "A click on a frame, or Enter, shows what it called; arrows go from frame to frame.");
  }

  key(event) {
    const node = this.shown.get(event.target);
    if (!node || event.ctrlKey || event.metaKey || event.altKey) return;
    const beside = (step) => {
      const row = [...this.shown].filter(([, other]) => other.depth === node.depth).map(([, other]) => other);
      return row[row.indexOf(node) + step];
    };
    const to = {
      ArrowUp: () => node.parent, ArrowDown: () => largestFirst(node)[0], ArrowLeft: () => beside(-1), ArrowRight: () => beside(1),
    };
    if (event.key in to) this.focus(to[event.key]());
    else if (event.key === "Escape" && this.zoomed !== this.root) this.zoom(this.zoomed.parent);
    else return;
    event.preventDefault();
    event.stopPropagation();
  }

  focus(node) {
    const [button] = [...this.shown].find(([, other]) => other === node) ?? [];
    if (!button) return;
    for (const other of this.shown.keys()) other.tabIndex = other === button ? 0 : -1;
    button.focus();
  }
}

const largestFirst = (node) => [...node.children.values()].sort((a, b) => b.value - a.value);
const share = (part, whole) => `${((part / whole) * 100).toFixed(1)}%`;

// A warm hue that is the same wherever a function is seen.
function hueOf(name) {
  let sum = 0;
  for (const letter of name) sum = (sum * 31 + letter.codePointAt(0)) % 997;
  return 8 + (sum % 48);
}
