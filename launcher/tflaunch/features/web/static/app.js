// The frame: which page is shown, keys, light and dark.
import { comparePage } from "./compare.js";
import { dialog, h, show } from "./parts.js";
import { runPage } from "./run.js";
import { runsPage } from "./runs.js";
import { taskPage } from "./task.js";

const main = document.getElementById("main");
const KEYS = [
  ["/", "filter or search"], ["j k ↑ ↓", "choose a row"], ["Enter", "open it"], ["Esc, b", "one level up"],
  ["1 … 7", "views of a run"], ["f", "follow the log"], ["t", "light or dark"], ["?", "these keys"],
];
let page = null;
let shown = "";

function route() {
  const parts = location.hash.replace(/^#\/?/, "").split("/").map(decodeURIComponent);
  const [run, second, third] = parts;
  const hasCharts = window.uPlot || document.readyState === "complete"; // the list of runs does not wait for them
  if (run && !hasCharts) return document.addEventListener("DOMContentLoaded", route, { once: true });
  const isComparison = run === "compare" && parts.length > 2; // no run is called that: names end with a time
  const key = JSON.stringify(isComparison ? parts : second === "task" ? [run, third] : [run]);
  if (key !== shown) {
    page?.close();
    main.replaceChildren();
    if (!run) page = runsPage(main);
    else if (isComparison) page = comparePage(main, parts.slice(1));
    else page = second === "task" && third ? taskPage(main, run, third) : runPage(main, run);
    shown = key;
    main.focus({ preventScroll: true });
    window.scrollTo(0, 0);
  }
  page.setTab?.(second ?? "tasks");
  document.title = `${page.title} · tflaunch`;
  show(document.getElementById("path"), page.path.map(([text, href]) => [h("span", {}, "/"), h("a", { href }, text)]));
}

function paint(theme) {
  if (theme) document.documentElement.dataset.theme = theme;
  else delete document.documentElement.dataset.theme;
  page?.repaint?.();
}

function otherTheme() {
  const dark = matchMedia("(prefers-color-scheme: dark)").matches;
  const current = document.documentElement.dataset.theme ?? (dark ? "dark" : "light");
  const other = current === "dark" ? "light" : "dark";
  localStorage.setItem("theme", other);
  paint(other);
}

function showKeys() {
  if (document.querySelector("dialog[open]")) return;
  dialog("Keys", [h("dl", { className: "keys" }, KEYS.map(([key, does]) => [h("dt", {}, key), h("dd", {}, does)]))]);
}

function go(hash) {
  location.hash = hash;
  route(); // the event comes later, perhaps after the next key
}

function up() {
  const parts = location.hash.replace(/^#\/?/, "").split("/").filter(Boolean);
  go(`#/${parts.length > 1 && parts[0] !== "compare" ? parts[0] : ""}`);
}

document.addEventListener("keydown", (event) => {
  const isTyping = ["INPUT", "SELECT", "TEXTAREA"].includes(event.target.tagName);
  if (event.key === "Escape" && isTyping) {
    event.target.blur();
    event.preventDefault(); // Chromium would empty the filter
  }
  if (isTyping || event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
  const keys = {
    "/": () => page.search?.focus(), "?": showKeys, t: otherTheme, f: () => page.follow?.(), b: up, Escape: up,
    j: () => page.focus?.focus(), k: () => page.focus?.focus(), ArrowDown: () => page.focus?.focus(),
  };
  const act = keys[event.key];
  const tab = /^[1-7]$/.test(event.key) ? page.tabHref?.(Number(event.key) - 1) : null;
  if (tab) go(tab);
  else if (act) act();
  else return;
  event.preventDefault();
  if (["j", "k", "ArrowDown"].includes(event.key)) page.focus?.dispatchEvent(new KeyboardEvent("keydown", { key: event.key }));
});

paint(localStorage.getItem("theme"));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => page?.repaint?.());
document.getElementById("theme").addEventListener("click", otherTheme);
document.getElementById("keys").addEventListener("click", showKeys);
addEventListener("hashchange", route);
let beforePrint = null;
addEventListener("beforeprint", () => {
  beforePrint = document.documentElement.dataset.theme;
  paint("light");
});
addEventListener("afterprint", () => paint(beforePrint));

route();
