// Some runs side by side: their curves, and what differs.
import { chartsOf, historyOf, overSteps } from "./charts.js";
import { Curves } from "./curves.js";
import { get } from "./data.js";
import { h, show, significant } from "./parts.js";

const SECTIONS = { results: "Results", spec: "Spec", code: "Code", packages: "Packages", hosts: "Machines" };

export function comparePage(main, runs) {
  const curves = new Curves({ axes: { step: "over steps", lasted: "over time" }, height: 220 });
  const none = h("p", { className: "note", hidden: true }, "No curves: none of these runs has recorded any figures.");
  const rows = h("section", {}, h("p", { className: "empty" }, "Comparing …"));
  curves.element.classList.add("compared");
  main.append(h("div", { className: "bar" }, h("h1", {}, `${runs.length} runs`)), curves.element, none, h("h2", {}, "What differs"), rows);
  load();

  async function load() {
    const asked = runs.map((run) => historyOf(run).catch(() => []));
    try {
      const { differences } = await get(`/api/compare?${runs.map((run) => `run=${encodeURIComponent(run)}`).join("&")}`);
      show(rows, tableOf(differences, runs));
    } catch (error) {
      show(rows, h("p", { className: "empty" }, error.message));
    }
    const histories = await Promise.all(asked);
    none.hidden = histories.some((history) => history.length > 1);
    const curveOf = ({ valueOf }, run) => curve(histories[runs.indexOf(run)], valueOf, curves.over);
    curves.set(runs, chartsOf(histories), curveOf, { linkOf: (run) => `#/${encodeURIComponent(run)}` });
  }

  return {
    title: "compare",
    path: [["compare", location.hash]],
    repaint: () => curves.repaint(),
    close: () => curves.close(),
  };
}

// The curve of a run: the first task that has the figure, over its steps or the seconds since the first moment.
function curve(history, valueOf, over) {
  const has = ({ tasks }, task) => tasks[task] && typeof valueOf(tasks[task]) === "number";
  const name = [...new Set(history.flatMap(({ tasks }) => Object.keys(tasks)))].find((task) => history.some((moment) => has(moment, task)));
  if (over === "step") return overSteps(history, name, valueOf);
  const known = history.filter((moment) => has(moment, name));
  return [known.map(({ time }) => time - history[0].time), known.map(({ tasks }) => valueOf(tasks[name]))];
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
    h("thead", {}, h("tr", {}, h("td", {}), runs.map((run) => h("th", {}, run)))),
    sections.map((section) => h("tbody", {},
      h("tr", {}, h("th", { colSpan: runs.length + 1, className: "section" }, SECTIONS[section] ?? section)),
      differences.filter((row) => row.section === section).map((row) => h("tr", {}, h("th", {}, row.name), row.values.map((value) => h("td", {}, text(value)))))))));
}
