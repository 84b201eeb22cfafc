// The hosts of a run, what its tasks use there, and what the run waits for.
import { named } from "./data.js";
import { Table, ago, clock, counted, duration, h, memory, percent, setText, show, tallied } from "./parts.js";

export class Hosts {
  constructor() {
    Object.assign(this, { machines: {}, status: null, table: null });
    this.element = h("section", { "aria-label": "Hosts" });
  }

  set(status) {
    this.status = status;
    this.used = usage(status);
    this.makeTable();
    this.table.set(status.hosts);
  }

  setMachines(machines) {
    this.machines = machines;
    if (this.status) this.set(this.status);
  }

  makeTable() {
    const { hosts } = this.status;
    const of = (host) => this.used[host.host] ?? { tasks: 0, devices: [] };
    const machine = (host) => this.machines[host.host] ?? {};
    const has = (value) => hosts.some((host) => value(host) !== null && value(host) !== undefined);
    const amount = (used, whole) => used + (used && whole ? ` of ${whole}` : "");
    const cores = (host) => (machine(host).cores ? counted(machine(host).cores, "core") : "");
    const devices = (host) => Object.entries(machine(host).devices ?? {});
    const deviceWords = ([task, names]) => `${task}: ${["", "-1"].includes(names) ? "none" : names}`;
    const models = (host) => tallied(machine(host).gpu_models);
    const columns = [
      { title: "Host", width: "minmax(6rem, 1fr)", cell: (host) => (host.is_spare ? `${host.host} (spare)` : host.replaces ? `${host.host} (for ${host.replaces})` : host.host) },
      { title: "State", width: "7.5rem", cell: (host) => host.state, badge: true },
      { title: "Tasks", width: "3rem", cell: (host) => String(of(host).tasks), sort: (host) => of(host).tasks, number: true },
      has((host) => of(host).cpu) && { title: "CPU", width: "8rem", cell: (host) => amount(percent(of(host).cpu), cores(host)), sort: (host) => of(host).cpu, number: true, wide: true },
      has((host) => of(host).rss) && { title: "Memory", width: "7rem", cell: (host) => amount(memory(of(host).rss), memory(machine(host).memory)), sort: (host) => of(host).rss, number: true, wide: true },
      has((host) => machine(host).gpus) && { title: "GPUs", width: "3rem", cell: (host) => String(machine(host).gpus ?? ""), sort: (host) => machine(host).gpus, number: true },
      hosts.some(models) && { title: "Model", width: "minmax(8rem, 1fr)", cell: models, hint: true, wide: true },
      has((host) => of(host).gpu) && { title: "GPU load", width: "5rem", cell: (host) => percent(of(host).gpu), sort: (host) => of(host).gpu, number: true, wide: true },
      has((host) => of(host).gpuBytes) && { title: "GPU memory", width: "6rem", cell: (host) => memory(of(host).gpuBytes), sort: (host) => of(host).gpuBytes, number: true, wide: true },
      hosts.some((host) => devices(host).length) && { title: "GPUs of tasks", width: "minmax(8rem, 2fr)", cell: (host) => devices(host).map(deviceWords).join(", "), hint: true, wide: true },
      { title: "Last heard", width: "6rem", cell: (host) => (host.silence === null ? "" : ago(host.silence)), sort: (host) => host.silence, number: true, wide: true },
      { title: "Why", width: "minmax(8rem, 3fr)", cell: why, hint: true, wide: true },
    ].filter(Boolean);
    const signature = columns.map((column) => column.title).join();
    if (this.table?.signature === signature) return;
    const before = this.table;
    this.table = new Table({ label: "Hosts", empty: "No hosts.", open: null, columns });
    this.table.signature = signature;
    this.table.orderAs(before);
    before?.close();
    this.element.replaceChildren(this.table.element);
  }

  close() {
    this.table?.close();
  }
}

// What the tasks of each host use together; the load of GPUs is the mean of those tasks that use some.
function usage(status) {
  const used = named();
  const add = (sum, value) => (value === null || value === undefined ? sum : (sum ?? 0) + value);
  for (const task of status.tasks) {
    const host = (used[task.host] ??= { tasks: 0, cpu: null, rss: null, gpuBytes: null, loads: [], gpu: null });
    host.tasks += 1;
    host.cpu = add(host.cpu, task.cpu_percent);
    host.rss = add(host.rss, task.rss_bytes);
    host.gpuBytes = add(host.gpuBytes, task.gpu_bytes);
    if (task.gpu_percent !== null && task.gpu_percent !== undefined) host.loads.push(task.gpu_percent);
    host.gpu = host.loads.length ? host.loads.reduce((sum, load) => sum + load, 0) / host.loads.length : null;
  }
  return used;
}

function why(host) {
  const what = host.state === "disconnected" ? "its tasks count as dead at" : "waited for until";
  const until = host.until === null ? [] : [`${what} ${clock(host.until)}`];
  const left = host.lease_left === null ? [] : [`its tasks go on for ${duration(host.lease_left)} without a supervisor`];
  return [...(host.reason === null ? left : [host.reason]), ...until].join("; ");
}

// What a live run waits for, with the time that is left, every second.
export class Waits {
  constructor() {
    this.list = h("ul", {});
    const about = { role: "group", "aria-label": "What the run waits for" };
    this.more = h("div", {});
    this.element = h("div", { className: "panel warn waits", hidden: true, ...about }, this.list, this.more);
    this.waits = [];
    this.timer = setInterval(() => this.tick(), 1000);
  }

  set(status) {
    this.waits = status.waits ?? [];
    this.ahead = status.now - Date.now() / 1000; // of the server's clock
    this.element.hidden = !this.waits.length;
    while (this.list.children.length > this.waits.length) this.list.lastChild.remove();
    while (this.list.children.length < this.waits.length) {
      this.list.append(h("li", {}, h("b", {}), ": ", h("span", { role: "timer" }), h("span", { className: "note" })));
    }
    show(this.more,
      status.forming?.hint ? h("p", {}, h("b", {}, "Hint: "), status.forming.hint) : "",
      status.last_failure ? h("p", {}, `The last attempt failed: ${status.last_failure}`) : "");
    this.tick();
  }

  tick() {
    const now = Date.now() / 1000 + (this.ahead ?? 0);
    const left = (time) => duration(Math.ceil(Math.max(time - now, 0)));
    this.waits.forEach((wait, at) => {
      const [what, timer, then] = this.list.children[at].children;
      const again = wait.again !== null && wait.again > now ? `; tried again in ${left(wait.again)}` : "";
      setText(what, wait.what); // may begin with the name of a host, which stays as it is
      setText(timer, `${left(wait.until)} more`);
      setText(then, `, until ${clock(wait.until)}${again}; ${wait.then}.`);
    });
  }

  close() {
    clearInterval(this.timer);
  }
}
