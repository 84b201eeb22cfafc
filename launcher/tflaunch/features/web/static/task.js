// One task: its figures, log, attempts, and what it was started with.
import { Charts } from "./charts.js";
import { Stream, apiOf, get, post } from "./data.js";
import { Logs } from "./logs.js";
import { badge, capital, confirmed, count, duration, h, memory, percent, rate, setBadge, show, significant, stateOf } from "./parts.js";
import { given } from "./ran.js";
import { exitOf, restart } from "./run.js";
import { Timeline } from "./timeline.js";

const SIGNALS = ["SIGTERM", "SIGINT", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGSTOP", "SIGCONT", "SIGKILL"];

export function taskPage(main, run, name) {
  const api = apiOf(run);
  let [status, timeline, drawnAttempt] = [null, null, null];
  const state = badge("");
  const facts = h("dl", { className: "figures" });
  const why = h("div", { className: "panel bad", hidden: true });
  const act = h("div", { className: "actions", hidden: true },
    h("button", { onclick: () => restart(api, run, [name]) }, "Restart"),
    h("button", { onclick: () => signal(api, name) }, "Signal"));
  const charts = new Charts(run, name);
  const logs = new Logs(run, name);
  const history = new Timeline(() => {}, name);
  const plan = h("section", { className: "plan" });
  main.append(
    h("div", { className: "bar" }, h("h1", {}, name), state, h("span", { className: "grow" }), act),
    why, facts, logs.element, charts.element,
    h("h2", {}, "Attempts"), history.element, h("h2", {}, "Started with"), plan);

  const stream = new Stream(`${api}/live?logs=${encodeURIComponent(name)}`, {
    status: (found) => { status = found; draw(); },
    timeline: (found) => { timeline = found; charts.mark(found); if (status) draw(); },
    lines: (lines) => logs.add(lines),
    cut: () => logs.tellCut(),
    over: () => charts.load(),
    trouble: ({ sentence }) => { why.hidden = false; show(why, h("p", {}, sentence)); },
    open: () => logs.reset(),
  });

  function draw() {
    const task = status.tasks.find((each) => each.task === name);
    if (!task) {
      show(main, h("p", { className: "empty" }, `${run} has no task ${name}.`));
      return;
    }
    setBadge(state, stateOf(task));
    act.hidden = status.exit_code !== null || status.supervisor !== "alive";
    const isAlive = task.pid !== null;
    const figures = [
      ["Host", task.host], ["Address", task.address], ["PID", task.pid], ["Attempt", task.attempt],
      ["Up", isAlive && task.since ? duration(status.now - task.since) : null], ["Exit", exitOf(task)],
      ["CPU", percent(task.cpu_percent)], ["Memory", memory(task.rss_bytes)], ["GPU", percent(task.gpu_percent)],
      ["Step", count(task.step)], ["Rate", rate(task.steps_per_second)],
      ["Epoch", task.epoch === null ? null : `${count(task.epoch)}${task.epochs === null ? "" : `/${count(task.epochs)}`}`],
      ...Object.entries(task.metrics ?? {}).map(([metric, value]) => [metric, significant(value)]),
    ].filter(([, value]) => value !== null && value !== undefined && value !== "");
    show(facts, figures.map(([title, value]) => h("div", {}, h("dt", {}, title), h("dd", {}, String(value)))));
    const { culprit, sentence, hint } = status.explanation;
    why.hidden = culprit?.task !== name;
    const lines = culprit?.traceback?.length ? culprit.traceback : [];
    if (!why.hidden) show(why, h("p", { className: "verdict" }, capital(sentence)),
      lines.length ? h("pre", { tabIndex: 0 }, lines.join("\n")) : "", hint ? h("p", {}, h("b", {}, "Hint: "), hint) : "");
    charts.add(status);
    if (timeline) history.set(timeline, status);
    const attempt = `${task.attempt} ${task.address}`;
    if (drawnAttempt !== attempt) showPlan(plan, api, name);
    drawnAttempt = attempt;
  }

  return {
    title: `${name} of ${run}`,
    path: [[run, `#/${encodeURIComponent(run)}`], [name, null]],
    search: logs.search,
    focus: logs.list.element,
    follow: () => logs.setFollow(!logs.isFollowing),
    repaint: () => charts.repaint(),
    close() {
      for (const part of [stream, charts, logs, history]) part.close();
    },
  };
}

function signal(api, name) {
  const choice = h("select", { "aria-label": "Signal" }, SIGNALS.map((each) => h("option", {}, each)));
  confirmed(`Send a signal to ${name}?`, "The rules of the run decide what follows, as if it had come from elsewhere.", "Send",
    () => post(`${api}/signal`, { tasks: [name], signal: choice.value }), { extra: [choice] });
}

async function showPlan(place, api, name) {
  try {
    const plan = await get(`${api}/plan?${new URLSearchParams({ task: name })}`);
    show(place, ...given(plan));
  } catch (error) {
    show(place, h("p", { className: "empty" }, error.message));
  }
}
