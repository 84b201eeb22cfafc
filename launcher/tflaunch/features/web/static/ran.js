// What ran: the commands of a run with their environment, its code, packages and machine, and its spec.
import { get } from "./data.js";
import { counted, h, memory, show, tallied } from "./parts.js";

const MOST_NAMED = 8;

export function ranView(api, taskHref) {
  const element = h("section", { className: "ran plan", "aria-label": "What ran" });
  return {
    element,
    async open() {
      try {
        show(element, sections(await get(`${api}/ran`), taskHref));
      } catch (error) {
        show(element, h("p", { className: "empty" }, error.message));
      }
    },
  };
}

function sections({ commands, left_out: leftOut, tensorflow, record, patch, is_patch_cut: isCut, spec }, taskHref) {
  const { code, packages, machine } = record;
  return [
    commands.map((command, at) => commandOf(command, at === 0, taskHref)),
    leftOut ? note(`${counted(leftOut, "task")} more ${leftOut === 1 ? "has another command" : "have other commands"}.`) : "",
    h("h2", {}, "Code"), codeOf(code, patch, isCut),
    h("h2", {}, "Packages"), packages ? packagesOf(record, tensorflow) : unknown("packages"),
    h("h2", {}, "Machine"), machine ? machineOf(record) : unknown("machine"),
    h("h2", {}, "Spec"),
    spec ? [note(`${spec.name}, as it was when the run began.`), text(spec.text)] : note("The run was started without a spec."),
  ];
}

const note = (sentence) => h("p", { className: "note" }, sentence);
const text = (content) => h("pre", { tabIndex: 0 }, content);
const unknown = (what) => note(`This run has no record of its ${what}: it began with an earlier version, or its disk was full.`);

function commandOf(command, isOpen, taskHref) {
  const { tasks, varies } = command;
  const named = tasks.slice(0, MOST_NAMED).map((task) => h("a", { href: taskHref(task) }, task));
  const rest = tasks.length > MOST_NAMED ? h("span", { className: "note" }, `and ${tasks.length - MOST_NAMED} more`) : "";
  return [
    h("h2", { className: "named" }, named, rest),
    tasks.length > 1 ? note(`As ${tasks[0]} gets it.`) : "",
    ...given(command, isOpen, varies),
  ];
}

// What a task is given: elements for its command, directory, TF_CONFIG and environment. `varies` are the variables
// that other tasks with this command have with other values.
export function given(plan, isOpen = true, varies = []) {
  const { TF_CONFIG: config, ...env } = plan.env;
  const reason = (key) => [plan.reasons[key], varies.includes(key) && "differs between tasks"].filter(Boolean).join("; ");
  return [
    h("h3", {}, "Command"), text(plan.argv.map(quoted).join(" ")),
    h("h3", {}, "Working directory"), h("pre", {}, plan.workdir),
    ...(config ? [h("h3", {}, "TF_CONFIG"), text(pretty(config))] : []),
    h("details", { open: isOpen }, h("summary", {}, "Environment"),
      h("table", {}, Object.entries(env).sort().map(([key, value]) =>
        h("tr", {}, h("th", { scope: "row" }, key), h("td", {}, value), h("td", { className: "note" }, reason(key)))))),
    plan.unset.length ? note(`Not inherited: ${plan.unset.join(", ")}`) : "",
    plan.secrets.length ? note(`Secrets: ${plan.secrets.join(", ")}`) : "",
  ];
}

function codeOf(code, patch, isCut) {
  if (!code) return unknown("code");
  const untracked = Object.keys(code.untracked ?? {});
  const programs = Object.entries(code.programs ?? {});
  const changes = code.patch || untracked.length ? "With changes that were not committed:" : "Without changes that were not committed.";
  return [
    code.commit
      ? facts([["Commit", code.commit], ["Repository", code.directory]])
      : h("p", {}, `The code is in ${code.directory}, which is in no git repository with a commit.`),
    code.commit ? note(changes) : "",
    patch ? h("pre", { className: "diff", tabIndex: 0 }, patch.replace(/\n$/, "").split("\n").map(diffLine)) : "",
    code.patch && !patch ? note("The difference was too large to be kept.") : "",
    isCut ? note("The difference goes on; code.patch among the files has all of it.") : "",
    untracked.length ? h("details", {}, h("summary", {}, counted(untracked.length, "untracked file")), text(untracked.join("\n"))) : "",
    programs.length ? h("table", {}, programs.map(([name, hash]) =>
      h("tr", {}, h("th", { scope: "row" }, name), h("td", { title: "SHA-256" }, hash)))) : "",
  ];
}

function diffLine(line) {
  const kind = /^(diff|index|\+\+\+|---) /.test(line) ? "head" : { "+": "added", "-": "removed", "@": "head" }[line[0]];
  return h("span", { className: kind ?? "" }, `${line}\n`);
}

function packagesOf({ python, interpreter, packages }, tensorflow) {
  const names = Object.keys(packages).sort();
  return [
    interpreter ? facts([["TensorFlow", tensorflow.join(", ")], ["Python", python], ["Interpreter", interpreter]])
      : note("The tasks run no Python that is known on this machine."),
    names.length ? h("details", {}, h("summary", {}, counted(names.length, "package")),
      h("p", { className: "packages" }, names.map((name) => h("span", {}, h("b", {}, name), ` ${packages[name]}`)))) : "",
  ];
}

function machineOf({ tflaunch, machine }) {
  return facts([
    ["Host", machine.host], ["System", machine.system], ["Architecture", machine.architecture],
    ["Processor", machine.processor], ["Cores", machine.cores], ["Memory", memory(machine.memory)], ["GPUs", tallied(machine.gpu_models) || machine.gpus], ["tflaunch", tflaunch],
  ]);
}

const isKnown = ([, value]) => value !== null && value !== undefined && value !== "";
const facts = (rows) => h("dl", { className: "figures" }, rows.filter(isKnown)
  .map(([title, value]) => h("div", {}, h("dt", {}, title), h("dd", {}, String(value)))));

const quoted = (word) => (/^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", `'"'"'`)}'`);

function pretty(config) {
  const { cluster, task } = JSON.parse(config);
  const roles = Object.entries(cluster).map(([role, addresses]) => {
    const shown = addresses.length > 16 ? [...addresses.slice(0, 16), `… ${addresses.length - 16} more`] : addresses;
    return `    ${JSON.stringify(role)}: ${JSON.stringify(shown).replaceAll('","', '", "')}`;
  });
  return `{\n  "cluster": {\n${roles.join(",\n")}\n  },\n  "task": ${JSON.stringify(task).replaceAll(",", ", ").replaceAll(":", ": ")}\n}`;
}
