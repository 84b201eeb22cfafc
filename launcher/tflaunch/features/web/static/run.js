// One run: how it stands, its tasks, charts, logs, timeline, stacks and hosts, what ran, and its files.
import { Charts } from "./charts.js";
import { Stream, apiOf, get, named, post } from "./data.js";
import { filesView } from "./files.js";
import { Hosts, Waits } from "./hosts.js";
import { Logs } from "./logs.js";
import {
  Table, badge, capital, clock, confirmed, copyable, count, counted, duration, h, memory, percent, rate, setBadge, setText, show, signalName,
  significant, stateOf,
} from "./parts.js";
import { ranView } from "./ran.js";
import { Timeline } from "./timeline.js";

const TABS = ["tasks", "logs", "timeline", "stacks", "hosts", "ran", "files"];
const TITLES = { ran: "What ran" };

export function runPage(main, run) {
  const api = apiOf(run);
  const taskHref = (task) => `#/${encodeURIComponent(run)}/task/${encodeURIComponent(task)}`;
  const openTask = (task) => (location.hash = taskHref(task));
  let [status, timeline, stream, tab, logs] = [null, null, null, null, null];

  const state = badge("");
  const facts = h("p", { className: "facts" });
  const panel = h("div", { className: "panel", hidden: true });
  const waits = new Waits();
  const act = h("div", { className: "actions", hidden: true },
    h("button", { onclick: () => restart(api, run, []) }, "Restart"),
    h("button", { onclick: stop }, "Stop"));
  const again = h("button", { onclick: rerun, hidden: true }, "Run again");
  const tabs = h("nav", { className: "tabs", "aria-label": "Views of this run" }, TABS.map((name, at) =>
    h("a", { href: `#/${encodeURIComponent(run)}${at ? `/${name}` : ""}`, title: `${at + 1}` }, TITLES[name] ?? name[0].toUpperCase() + name.slice(1))));
  const content = h("div", { className: "content" });
  main.append(
    h("div", { className: "bar" }, h("h1", {}, run), state, h("span", { className: "grow" }), act, again), facts, panel, waits.element, tabs, content);

  const charts = new Charts(run, null, taskHref);
  const search = h("input", { type: "search", placeholder: "Filter tasks", "aria-label": "Filter tasks", oninput: () => drawTasks() });
  const counts = h("span", { className: "note" });
  let table = null;
  const tasks = h("section", { className: "tasks" }, charts.element, h("div", { className: "bar" }, search, counts));
  const history = new Timeline(openTask);
  const stacks = stacksView(api, taskHref);
  const hosts = new Hosts();
  const ran = ranView(api, taskHref);
  const files = filesView(api, run);
  const views = { tasks, timeline: history.element, stacks: stacks.element, hosts: hosts.element, ran: ran.element, files: files.element };

  function makeTable() {
    const has = (field) => status.tasks.some((task) => task[field] !== null);
    const metrics = [...new Set(status.tasks.flatMap((task) => Object.keys(task.metrics ?? {})))].slice(0, 2);
    const hostsDiffer = new Set(status.tasks.map((task) => task.host)).size > 1;
    const now = () => status.now;
    const up = (task) => (task.since && task.exit_code === null && task.signal === null && task.pid ? now() - task.since : null);
    const columns = [
      { title: "Task", width: "minmax(6.5rem, 1fr)", cell: (task) => task.task, href: (task) => taskHref(task.task), sort: (task) => task.task.replace(/\d+/, (digits) => digits.padStart(6, "0")) },
      { title: "State", width: "7.5rem", cell: stateOf, badge: true },
      status.tasks.some(exitOf) && { title: "Exit", width: "4.5rem", cell: exitOf },
      hostsDiffer && { title: "Host", width: "minmax(6rem, 1fr)", cell: (task) => task.host, wide: true },
      status.tasks.some((task) => up(task) !== null) && { title: "Up", width: "5.5rem", cell: (task) => (up(task) === null ? "" : duration(up(task))), sort: up, number: true, wide: true },
      has("cpu_percent") && { title: "CPU", width: "3rem", cell: (task) => percent(task.cpu_percent), sort: (task) => task.cpu_percent, number: true, wide: true },
      has("rss_bytes") && { title: "Memory", width: "4rem", cell: (task) => memory(task.rss_bytes), sort: (task) => task.rss_bytes, number: true, wide: true },
      has("gpu_percent") && { title: "GPU", width: "3rem", cell: (task) => percent(task.gpu_percent), sort: (task) => task.gpu_percent, number: true, wide: true },
      has("step") && { title: "Step", width: "4rem", cell: (task) => (task.is_progress_from_output ? "~" : "") + count(task.step), sort: (task) => task.step, number: true },
      has("steps_per_second") && { title: "Rate", width: "4.5rem", cell: (task) => rate(task.steps_per_second), sort: (task) => task.steps_per_second, number: true, wide: true },
      has("epoch") && { title: "Epoch", width: "4rem", cell: (task) => (task.epoch === null ? "" : count(task.epoch) + (task.epochs === null ? "" : `/${count(task.epochs)}`)), sort: (task) => task.epoch, number: true, wide: true },
      ...metrics.map((name) => ({ title: name, width: "4.5rem", cell: (task) => significant(task.metrics?.[name]), sort: (task) => task.metrics?.[name], number: true, wide: true })),
      ...[...new Set(status.tasks.flatMap((task) => Object.keys(task.columns ?? {})))].map((name) => ({ title: name, width: "4.5rem", cell: (task) => (Number.isInteger(task.columns?.[name]) ? count(task.columns[name]) : significant(task.columns?.[name])), sort: (task) => task.columns?.[name], number: true, wide: true })),
      { title: "Last line", width: "minmax(8rem, 3fr)", cell: (task) => task.last_line ?? "", wide: true, hint: true },
    ].filter(Boolean);
    const signature = columns.map((column) => column.title + Boolean(column.wide)).join();
    if (table?.signature === signature) return;
    table?.element.remove();
    table?.close();
    table = new Table({ columns, open: (task) => openTask(task.task), label: "Tasks", empty: "No task matches." });
    table.signature = signature;
    tasks.append(table.element);
  }

  function drawTasks() {
    if (!status) return;
    makeTable();
    const wanted = search.value.toLowerCase();
    table.set(status.tasks.filter((task) => `${task.task} ${stateOf(task)} ${task.host}`.toLowerCase().includes(wanted)));
    const found = {};
    for (const task of status.tasks) found[stateOf(task)] = (found[stateOf(task)] ?? 0) + 1;
    setText(counts, Object.entries(found).sort((a, b) => b[1] - a[1]).map(([name, number]) => `${number} ${name}`).join(", "));
  }

  function draw() {
    setBadge(state, status.exit_code !== null ? status.state : status.supervisor === "dead" ? "lost" : status.phase);
    const isLive = status.exit_code === null && status.supervisor === "alive";
    act.hidden = !isLive;
    again.hidden = status.exit_code === null;
    show(facts, factsOf(status, timeline).join(" · "));
    drawPanel(panel, status, taskHref);
    waits.set(status);
    charts.add(status);
    if (tab === "tasks") drawTasks();
    if (tab === "timeline" && timeline) history.set(timeline, status);
    if (tab === "hosts") hosts.set(status);
    if (tab === "files") files.set(status);
  }

  function follow() {
    stream?.close();
    stream = new Stream(`${api}/live${logs ? "?logs=*" : ""}`, {
      open: () => logs?.reset(),
      status: (found) => { status = found; draw(); },
      timeline: (found) => { timeline = found; charts.mark(found); if (status) draw(); },
      machines: (found) => hosts.setMachines(found),
      lines: (lines) => logs?.add(lines),
      cut: () => logs?.tellCut(),
      over: () => charts.load(),
      trouble: ({ sentence }) => { panel.hidden = false; panel.className = "panel warn"; show(panel, h("p", {}, sentence)); },
    });
  }

  function setTab(name) {
    if (tab === name) return;
    const hadLogs = tab === "logs";
    tab = name;
    main.classList.toggle("brief", name !== "tasks");
    [...tabs.children].forEach((link, at) => (TABS[at] === name ? link.setAttribute("aria-current", "page") : link.removeAttribute("aria-current")));
    tabs.children[TABS.indexOf(name)].scrollIntoView({ block: "nearest", inline: "nearest" });
    logs?.close();
    logs = name === "logs" ? new Logs(run) : null;
    content.replaceChildren(logs ? logs.element : views[name]);
    if (name === "stacks") stacks.open(status);
    if (name === "ran") ran.open();
    if (name === "files") files.open();
    if (logs || hadLogs || !stream) follow();
    else if (status) draw();
  }

  function stop() {
    confirmed(`Stop ${run}?`, "Its tasks get TERM and the spec's grace to save, and then KILL.", "Stop the run", () => post(`${api}/stop`));
  }

  function rerun() {
    confirmed(`Run ${run} again?`, "A new run begins with the same plan, on the code and machines as they are now. This one stays as it is.", "Run again", async () => {
      const { run: begun } = await post(`${api}/rerun`);
      location.hash = `#/${encodeURIComponent(begun)}`;
    }, { isHarmless: true });
  }

  return {
    title: run,
    path: [[run, `#/${encodeURIComponent(run)}`]],
    setTab: (name) => setTab(TABS.includes(name) ? name : "tasks"),
    tabHref: (at) => (TABS[at] ? tabs.children[at].getAttribute("href") : null),
    get search() { return logs ? logs.search : tab === "files" ? files.search : search; },
    get focus() { return logs ? logs.list.element : table?.list.element; },
    follow: () => logs?.setFollow(!logs.isFollowing),
    repaint: () => charts.repaint(),
    close() {
      main.classList.remove("brief");
      stream?.close();
      for (const part of [charts, history, table, logs, hosts, waits]) part?.close();
    },
  };
}

export const exitOf = (task) => (task.signal !== null ? signalName(task.signal) : String(task.exit_code ?? ""));

export function restart(api, name, tasks) {
  const what = tasks.length ? tasks.join(", ") : "all tasks that train";
  confirmed(`Restart ${what}?`,
    "They get TERM and the spec's grace to save first. Tasks that cannot start alone restart together with all that train. The restart budget is not charged.",
    "Restart", () => post(`${api}/restart`, { tasks }));
}

function factsOf(status, timeline) {
  const ends = (timeline?.tasks ?? []).map((span) => span.ended).filter(Boolean);
  const end = status.exit_code === null || !ends.length ? status.now : Math.max(...ends);
  const facts = [counted(status.tasks.length, "task")];
  if (status.hosts.length > 1) facts.push(counted(status.hosts.length, "host"));
  facts.push(`started ${clock(status.started, true)}`, status.exit_code === null ? `for ${duration(end - status.started)}` : `lasted ${duration(end - status.started)}`);
  if (status.exit_code !== null) facts.push(`exit code ${status.exit_code}`);
  if (status.restart) facts.push(status.restart);
  const first = status.tasks.find((task) => task.step); // as the list of runs and the end of a run say it
  if (first) facts.push(`step ${count(first.step)}`);
  const loss = status.tasks.find((task) => task.metrics?.loss !== undefined && task.metrics?.loss !== null)?.metrics.loss;
  if (loss !== undefined) facts.push(`loss ${significant(loss)}`);
  return facts;
}

// Why it failed, what it waits for, or what its supervisor's death means; nothing for a run that goes well.
function drawPanel(panel, status, taskHref) {
  const { explanation: found, forming } = status;
  const isLost = status.exit_code === null && status.supervisor === "dead";
  const isFailed = status.exit_code !== null && status.state === "failed";
  const isTold = status.waits?.length > 0; // by the panel of what the run waits for
  const isForming = forming !== null && status.exit_code === null && !isTold;
  const isRetried = status.exit_code === null && status.last_failure && !isTold;
  panel.hidden = !(isLost || isFailed || isForming || isRetried || status.phase === "hanging");
  if (panel.hidden) return;
  panel.className = `panel ${isFailed ? "bad" : "warn"}`;
  const { culprit } = found;
  const lines = culprit?.traceback?.length ? culprit.traceback : culprit?.last_lines ?? [];
  const named = culprit?.task ? h("a", { href: taskHref(culprit.task), className: "culprit" }, culprit.task) : null;
  const about = culprit?.task ? [found.host ?? culprit.host, culprit.attempt === null ? "" : `attempt ${culprit.attempt}`].filter(Boolean).join(", ") : "";
  const rest = named && found.sentence.startsWith(culprit.task) ? found.sentence.slice(culprit.task.length) : null;
  show(panel,
    h("p", { className: "verdict" }, ...(rest === null ? [capital(found.sentence)] : [named, rest]), about ? h("span", { className: "note" }, ` ${about}`) : ""),
    lines.length ? h("pre", { tabIndex: 0 }, lines.join("\n")) : "",
    found.hang ? h("p", {}, found.hang) : "",
    found.hint ?? forming?.hint ? h("p", {}, h("b", {}, "Hint: "), found.hint ?? forming.hint) : "",
    found.also_stopped?.length ? h("p", { className: "note" }, `Stopped because of it: ${listed(found.also_stopped)}`) : "",
    found.not_restarted ? h("p", { className: "note" }, `Not restarted: ${found.not_restarted}`) : "",
    isFailed || isLost ? h("p", { className: "next" }, h("span", { className: "note" }, "In a terminal: "), found.next.slice(0, 2).map(copyable)) : "");
}

const listed = (names) => names.slice(0, 8).join(", ") + (names.length > 8 ? ` and ${names.length - 8} more` : "");

function stacksView(api, taskHref) {
  const found = h("div", {});
  const button = h("button", { onclick: look }, "Look again");
  const element = h("section", { className: "stacks" }, h("div", { className: "bar" }, button,
    h("span", { className: "note" }, "Tasks are observed for three seconds; they are neither stopped nor signalled.")), found);

  async function look() {
    button.disabled = true;
    show(found, h("p", { className: "empty" }, "Looking at all tasks …"));
    try {
      draw(await get(`${api}/stacks`));
    } catch (error) {
      show(found, h("p", { className: "empty" }, error.message));
    }
    button.disabled = false;
  }

  function draw({ sentence, culprits, groups, tasks, silent_hosts: silent }) {
    const evidence = named(tasks.map((task) => [task.task, task]));
    show(found,
      h("div", { className: `panel ${culprits.length ? "bad" : "good"}` }, h("p", { className: "verdict" }, capital(sentence))),
      silent.length ? h("p", { className: "note" }, `Not heard from: ${silent.join(", ")}`) : "",
      groups.map((group) => {
        const frame = group.own_frame ?? group.inner_frame;
        const shown = group.tasks.slice(0, 12);
        return h("article", {},
          h("h3", {}, shown.map((task) => h("a", { href: taskHref(task) }, task)), group.tasks.length > 12 ? `and ${group.tasks.length - 12} more` : ""),
          h("p", {}, group.does, frame ? h("code", {}, ` ${frame.file}:${frame.line}, in ${frame.function}`) : ""),
          h("details", {}, h("summary", {}, "Stacks"), h("pre", {}, shown.flatMap((task) => stackOf(evidence[task])).join("\n"))));
      }));
  }

  return {
    element,
    open(status) {
      if (!found.firstChild && (status === null || status.exit_code === null)) look();
      else if (!found.firstChild) show(found, h("p", { className: "empty" }, "The run has ended: there are no stacks."));
    },
  };
}

function stackOf(evidence) {
  return (evidence?.processes ?? []).flatMap((process) => [
    `${evidence.task}: process ${process.pid} (${process.name}, state ${process.state}, ${process.cpu.toFixed(1)} CPUs)${process.unread ? `: ${process.unread}` : ""}`,
    ...process.threads.flatMap((thread) => [
      `    thread ${thread.id || "?"}${thread.wchan ? `, in ${thread.wchan}` : ""}${thread.target ? ` on ${thread.target}` : ""}${thread.has_moved ? ", running" : ""}`,
      ...thread.frames.map(([file, line, name]) => `        ${file}:${line}, in ${name}`),
    ]),
  ]);
}
