// The files of a run: what it fetched and measured, its logs, what tflaunch wrote about it; and its TensorBoard.
import { get } from "./data.js";
import { Flame } from "./flame.js";
import { ago, clock, copyable, counted, h, memory, show } from "./parts.js";

const GROUPS = {
  collected: ["Collected", "Files of the working directories that the spec's collect names."],
  profiles: ["Profiles", "Sampled stacks of tasks, and their flame graphs."],
  checkpoints: ["Checkpoints", "Copies of the newest checkpoints."],
  logs: ["Logs", "What tasks printed."],
  run: ["About the run", "Written by tflaunch; values that look like secrets are replaced."],
};
const ABOUT = {
  "events.jsonl": "journal", "plan.json": "plan of every process", "record.json": "code, packages and machine",
  "code.patch": "difference from the commit",
  "history.jsonl": "what tasks used and reported over time", "supervisor.log": "messages of the supervisor",
};
const FOLDED = ".folded";

export function filesView(api, run) {
  const board = h("div", {});
  const drawing = h("div", {});
  const list = h("div", {});
  const element = h("section", { className: "files", "aria-label": "Files" }, board, drawing, list);
  let [found, status, flame] = [null, null, null];
  const isLive = () => status?.supervisor === "alive"; // also while files are collected, after the exit code is known

  async function load() {
    try {
      found = await get(`${api}/files`);
      draw();
    } catch (error) {
      show(list, h("p", { className: "empty" }, error.message));
    }
  }

  function draw() {
    if (!found) return;
    show(board, boardOf(status?.tensorboard, found.has_tensorboard, run));
    show(list, sections(api, found, run, isLive(), openFlame));
  }

  function openFlame({ name, path }, button) {
    const [session, task] = name.replace(FOLDED, "").split("/");
    const close = () => {
      flame = null;
      drawing.replaceChildren();
      button.focus();
    };
    flame = new Flame(`${task ?? session} · ${session}`, `${api}/files/${path}`, close);
    drawing.replaceChildren(flame.element);
    drawing.scrollIntoView({ block: "nearest" });
    flame.search.focus({ preventScroll: true });
  }

  return {
    element,
    open: load,
    get search() { return flame?.search ?? null; },
    // Files are collected at the end: then they are listed again.
    set(current) {
      const [was, board] = [isLive(), status?.tensorboard?.url];
      status = current;
      if (was && !isLive()) load();
      else if (was !== isLive() || board !== status.tensorboard?.url) draw();
    },
  };
}

function sections(api, { files, left_out: leftOut }, run, isLive, openFlame) {
  const groups = Object.keys(GROUPS).map((group) => [group, files.filter((file) => file.group === group)]);
  const isUnprofiled = isLive && !files.some((file) => file.group === "profiles");
  return [
    h("p", { className: "note" }, `${counted(files.length + leftOut, "file")} to download`),
    h("p", { className: "note" }, "All that tflaunch knows about the run in one file, without secrets: ",
      h("a", { className: "outward", href: `${api}/report`, download: "" }, "report"), ", ",
      h("a", { className: "outward", href: `${api}/report?logs=1`, download: "" }, "report with logs")),
    groups.map(([group, members]) => (members.length ? groupOf(api, group, members, openFlame) : "")),
    leftOut ? h("p", { className: "note" }, `${counted(leftOut, "file")} more: they are in the run's directory.`) : "",
    isUnprofiled ? inTerminal("No profile yet.", `tflaunch profile ${run}`) : "",
  ];
}

const inTerminal = (why, command) => h("p", { className: "next" }, h("span", { className: "note" }, `${why} In a terminal: `), copyable(command));

function groupOf(api, group, files, openFlame) {
  const [title, about] = GROUPS[group];
  return [
    h("h2", {}, title), h("p", { className: "note" }, about),
    h("table", { "aria-label": title }, files.map((file) => h("tr", {},
      h("td", {}, h("a", { href: `${api}/files/${file.path}`, download: "" }, file.name),
        file.name.endsWith(FOLDED) && group === "profiles" ? h("button", {
          className: "copy", "aria-label": `Flame graph of ${file.name}`, onclick: (event) => openFlame(file, event.target),
        }, "flame graph") : "",
        group === "run" ? h("span", { className: "note" }, ABOUT[file.name] ?? "the spec, as it was when the run began") : ""),
      h("td", { className: "number" }, `${memory(file.size)}B`),
      h("td", { className: "number", title: clock(file.modified, true) }, ago(Date.now() / 1000 - file.modified))))),
  ];
}

function boardOf(reach, isInSpec, run) {
  if (reach?.url?.startsWith("http")) {
    return h("p", { className: "next" }, h("b", {}, "TensorBoard: "),
      reach.container
        ? `${reach.url} inside the container ${reach.container}, whose loopback address cannot be reached from outside`
        : h("a", { className: "outward", href: reach.url, target: "_blank", rel: "noreferrer" }, reach.url),
      reach.tunnel ? h("span", {}, ` on ${reach.host}; first: `, copyable(reach.tunnel)) : "");
  }
  return isInSpec ? inTerminal("TensorBoard does not run now.", `tflaunch tensorboard ${run}`) : "";
}
