// All runs: filtered, grouped by their job, and chosen to be compared.
import { Stream } from "./data.js";
import { Table, ago, count, counted, duration, h, setText, significant } from "./parts.js";

const MOST_COLUMNS = 3; // of metrics, and of values of a matrix
const MOST_COMPARED = 8;
const REM = 16; // pixels
const GAP = 18; // pixels for each column, with the margins of the page
const LEAST_NAME = 14; // rem
const LIVE = "live";
const LONG_STATE = 12; // characters

export function runsPage(main) {
  let found = [];
  let table = null;
  const chosen = new Set();
  const search = h("input", { type: "search", placeholder: "Filter runs", "aria-label": "Filter runs", oninput: draw });
  const state = h("select", { "aria-label": "State", onchange: draw });
  const job = h("select", { "aria-label": "Job", onchange: draw });
  const group = h("button", { "aria-pressed": "false", onclick: () => {
    group.setAttribute("aria-pressed", String(group.getAttribute("aria-pressed") !== "true"));
    draw();
  } }, "Group by job");
  const compare = h("button", { onclick: () => (location.hash = `#/compare/${[...chosen].map(encodeURIComponent).join("/")}`) }, "Compare");
  main.append(h("div", { className: "bar" }, h("h1", {}, "Runs"), h("span", { className: "grow" }), state, job, group, compare, search));
  const stream = new Stream("/api/live", { runs: (runs) => { found = runs; draw(); } });

  function makeTable() {
    const names = (field) => [...new Set(found.flatMap((run) => Object.keys(run[field])))].slice(0, MOST_COLUMNS);
    const now = () => Date.now() / 1000;
    const lasted = (run) => (run.started ? (run.ended ?? now()) - run.started : null);
    const left = (run) => Math.max(run.expected_end - now(), 0);
    const number = (text) => (text !== "" && !Number.isNaN(Number(text)) ? Number(text) : text);
    const columns = [
      { title: "", label: "Choose", width: "1.2rem", checked: (run) => chosen.has(run.run), check: choose },
      { title: "Run", width: "minmax(9rem, 3fr)", cell: (run) => run.run, href: hrefOf },
      { title: "State", width: found.some((run) => run.state.length > LONG_STATE) ? "10rem" : "7rem", cell: (run) => run.state, badge: true },
      ...names("matrix").map((name) => ({ title: name, width: "5rem", cell: (run) => run.matrix[name] ?? "", sort: (run) => number(run.matrix[name] ?? ""), number: true })),
      found.some((run) => run.step !== null) && { title: "Step", width: found.some((run) => run.steps) ? "8rem" : "4.5rem", cell: progress, sort: (run) => run.step, number: true, wide: true },
      ...names("metrics").map((name) => ({ title: name, width: "5.5rem", cell: (run) => significant(run.metrics[name]), sort: (run) => run.metrics[name], number: true, wide: true })),
      found.some((run) => run.expected_end) && { title: "Left", width: "6rem", cell: (run) => (run.expected_end ? duration(left(run)) : ""), sort: (run) => (run.expected_end ? left(run) : ""), number: true, wide: true },
      new Set(found.map(placeOf).filter(Boolean)).size > 1 && { title: "Host", width: "6rem", cell: placeOf, wide: true, hint: true },
      { title: "Exit", width: "3rem", cell: (run) => String(run.exit_code ?? ""), sort: (run) => run.exit_code, number: true, wide: true },
      { title: "Tasks", width: "3.5rem", cell: (run) => String(run.tasks ?? ""), sort: (run) => run.tasks, number: true, wide: true },
      { title: "Started", width: "6.5rem", cell: (run) => (run.started ? ago(now() - run.started) : ""), sort: (run) => run.started, number: true, wide: true },
      { title: "Lasted", width: "6.5rem", cell: (run) => (run.started ? duration(lasted(run)) : ""), sort: lasted, number: true, wide: true },
    ].filter(Boolean);
    for (const title of ["Exit", "Tasks", ...names("metrics").slice(1).reverse(), "Host"]) {
      if (widthOf(columns) > main.clientWidth) drop(columns, title);
    }
    const signature = columns.map((column) => column.title + column.width).join();
    if (table?.signature === signature) return;
    const before = table;
    table = new Table({ label: "Runs", empty: "", open: (run) => (location.hash = hrefOf(run)), columns });
    table.signature = signature;
    table.element.classList.add("tall");
    table.orderAs(before);
    before?.element.remove();
    before?.close();
    main.append(table.element);
  }

  function choose(run, isChosen) {
    if (isChosen) chosen.add(run.run);
    else chosen.delete(run.run);
    drawChoice();
  }

  function drawChoice() {
    compare.disabled = chosen.size < 2 || chosen.size > MOST_COMPARED;
    compare.title = compare.disabled ? `Choose 2 to ${MOST_COMPARED} runs` : `Compare ${counted(chosen.size, "run")}`;
    setText(compare, chosen.size ? `Compare ${chosen.size}` : "Compare");
  }

  function draw() {
    makeTable();
    fill(state, ["all states", LIVE, ...new Set(found.map((run) => run.state))]);
    fill(job, ["all jobs", ...new Set(found.map(jobOf).filter(Boolean))]);
    const isWanted = (run) => !state.selectedIndex || run.state === state.value || (state.value === LIVE && run.exit_code === null && !["lost", "unreadable"].includes(run.state));
    const words = search.value.toLowerCase().split(/\s+/);
    const text = (run) => [run.run, run.state, ...Object.entries(run.matrix).flat()].join(" ").toLowerCase();
    const shown = found.filter((run) => isWanted(run) && (!job.selectedIndex || jobOf(run) === job.value) && words.every((word) => text(run).includes(word)));
    setText(table.none, found.length ? "No run matches." : "No runs yet: tflaunch up cluster.json starts one.");
    table.groupOf = group.getAttribute("aria-pressed") === "true" ? jobOf : null;
    table.set(shown);
    drawChoice();
  }

  makeTable();
  const timer = setInterval(draw, 1000);
  return {
    title: "runs",
    path: [],
    get focus() { return table.list.element; },
    search,
    close() {
      clearInterval(timer);
      stream.close();
      table.close();
    },
  };
}

// How many pixels columns need, with names of runs that can be told apart.
const widthOf = (columns) => columns.reduce((sum, { width }) => sum + REM * (parseFloat(width) || LEAST_NAME) + GAP, 0);

function drop(columns, title) {
  const at = columns.findIndex((column) => column.title === title);
  if (at >= 0) columns.splice(at, 1);
}

// Fill a list of choices, and keep what is chosen.
function fill(select, words) {
  const value = select.value;
  if (words.join() === [...select.options].map((option) => option.value).join()) return;
  select.replaceChildren(...words.map((word) => h("option", { value: word }, word)));
  select.selectedIndex = Math.max(words.indexOf(value), 0);
}

const jobOf = (run) => run.job ?? "";

const progress = (run) => count(run.step) + (run.steps ? ` of ${count(run.steps)}` : "");

// Where a run is: what its hosts belong to, the name of the only one, or their number.
const placeOf = (run) => run.engine ?? run.host ?? (run.hosts ? counted(run.hosts, "host") : "");

export const hrefOf = (run) => `#/${encodeURIComponent(run.run)}`;
