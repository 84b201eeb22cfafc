// All runs.
import { Stream } from "./data.js";
import { Table, ago, duration, h, setText } from "./parts.js";

export function runsPage(main) {
  let found = [];
  const search = h("input", { type: "search", placeholder: "Filter runs", "aria-label": "Filter runs", oninput: draw });
  const table = new Table({
    label: "Runs",
    empty: "",
    open: (run) => (location.hash = hrefOf(run)),
    columns: [
      { title: "Run", width: "minmax(14rem, 3fr)", cell: (run) => run.run, href: hrefOf },
      { title: "State", width: "8rem", cell: (run) => run.state, badge: true },
      { title: "Exit", width: "4rem", cell: (run) => (run.exit_code === null ? "" : String(run.exit_code)), sort: (run) => run.exit_code, number: true, wide: true },
      { title: "Tasks", width: "5rem", cell: (run) => String(run.tasks ?? ""), sort: (run) => run.tasks, number: true, wide: true },
      { title: "Started", width: "8rem", cell: (run) => (run.started ? ago(Date.now() / 1000 - run.started) : ""), sort: (run) => run.started, number: true, wide: true },
      { title: "Lasted", width: "6rem", cell: (run) => (run.started ? duration((run.ended ?? Date.now() / 1000) - run.started) : ""), sort: (run) => (run.started ? (run.ended ?? Date.now() / 1000) - run.started : null), number: true },
    ],
  });
  table.element.classList.add("tall");
  main.append(h("div", { className: "bar" }, h("h1", {}, "Runs"), h("span", { className: "grow" }), search), table.element);
  const stream = new Stream("/api/live", { runs: (runs) => { found = runs; draw(); } });

  function draw() {
    const wanted = search.value.toLowerCase();
    setText(table.none, found.length ? "No run matches." : "No runs yet: tflaunch up cluster.json starts one.");
    table.set(found.filter((run) => `${run.run} ${run.state}`.toLowerCase().includes(wanted)));
  }

  const timer = setInterval(draw, 1000);
  return {
    title: "runs",
    path: [],
    focus: table.list.element,
    search,
    close() {
      clearInterval(timer);
      stream.close();
      table.close();
    },
  };
}

export const hrefOf = (run) => `#/${encodeURIComponent(run.run)}`;
