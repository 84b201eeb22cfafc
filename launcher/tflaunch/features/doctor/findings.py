"""Derive findings from what the hosts report. Pure: `collect` queries them."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from tflaunch.core import policy, port_fence, preflight
from tflaunch.errors import Problem
from tflaunch.explain.wording import counted, listed
from tflaunch.plan import attempts, tensorboard
from tflaunch.plan.gpu_shares import gpus_assigned
from tflaunch.plan.model import AUTO, FENCED_OR_FAIL, OPEN, PRIVATE, SIDECAR, Plan, TaskPlan
from tflaunch.plan.tf_config import has_cluster
from tflaunch_worker.readable import duration_words

_WITHOUT_TENSORFLOW = ("none", "jax")  # strategies
_GIB = 2**30
_LITTLE_DISK = _GIB
_LITTLE_MEMORY = _GIB // 2  # per task: TensorFlow alone takes that much
_FEW_FILES = 1024
NOBODY, RUN, THIS_MACHINE = "nobody", "the run's own tasks", "this machine"
CLUSTER, EVERYBODY = "the cluster's hosts", "everybody"
"""Who could reach the port of a task."""
_MOST_OFFSET = 2.0  # seconds between clocks
CHECKS = (
    "reach", "program", "python", "tensorflow", "keras", "names", "ports", "peers", "fence", "proxies", "secrets",
    "clock", "disk", "memory", "gpus", "files", "checkpoints", "tensorboard",
)  # fmt: skip
"""The names of all checks, in display order."""


class Finding(NamedTuple):
    """A problem that a check found; ``severity``: error, or warning of a possible one."""

    check: str
    severity: str
    where: str
    message: str
    hint: str


class Host(NamedTuple):
    """The facts about one host; ``facts``: those of the host as a whole.

    ``reason``: why it was not reached; ``programs``: facts about each task's interpreter; ``offset``: seconds that its
    clock is ahead of ours; ``names``: what the others' names resolve to there; ``refused``, ``unreached``: reason per
    task; ``unshared``: directories that differ from other hosts'; ``reachable_by``: where tasks are reachable from.
    """

    host: str
    reason: str | None = None
    programs: Mapping[str, Mapping[str, Any]] = {}
    facts: Mapping[str, Any] = {}
    offset: float = 0.0
    names: Mapping[str, str] = {}
    refused: Mapping[str, str] = {}
    unreached: Mapping[str, str] = {}
    unshared: tuple[str, ...] = ()
    reachable_by: Mapping[str, str] = {}


class Diagnosis(NamedTuple):
    """What keeps a spec from running; ``not_checked``: checks, and what they lack."""

    ok: bool
    findings: Sequence[Finding]
    not_checked: Mapping[str, str]
    hosts: Sequence[Host]


def findings(plan: Plan, hosts: Mapping[str, Host], secrets: Sequence[Problem] = ()) -> list[Finding]:
    """Return all findings in the order of `CHECKS`."""
    reached = [host for host in hosts.values() if host.reason is None]
    there = [_without_board(plan, host) for host in reached]
    found = [_reach(host) for host in hosts.values() if host.reason is not None]
    for host in there:
        found += [*([] if plan.has_setups else _programs(host)), *_packages(plan, host), *_connections(plan, host)]
        found += [*_fence(plan, host), *_resources(plan, host)]
    found += [*_differing_programs(there), *_skew(there), *_proxies(plan), *_gpus(plan, there)]
    found += [Finding("secrets", each.severity, each.where, each.message, each.hint) for each in secrets]
    found += _board(plan, reached)
    return sorted(dict.fromkeys(found), key=lambda finding: CHECKS.index(finding.check))


def _without_board(plan: Plan, host: Host) -> Host:
    """Drop the facts about TensorBoard's Python, which do not matter for training."""
    process = tensorboard.tensorboard_of(plan)
    if process is None:
        return host
    return host._replace(programs={task: known for task, known in host.programs.items() if task != process.task})


def _reach(host: Host) -> Finding:
    reason, _, remedy = (host.reason or "").partition("; ")
    return Finding("reach", "error", host.host, reason, remedy or "correct hosts, or the SSH configuration")


def unchecked(plan: Plan, hosts: Mapping[str, Host]) -> dict[str, str]:
    """Return the checks that could not be done everywhere, each with the reason."""
    missing = [host.host for host in hosts.values() if host.reason is not None]
    if missing:
        return {check: f"needs {listed(missing)}" for check in CHECKS if check not in ("reach", "proxies", "secrets")}
    known = [known for host in hosts.values() for task, known in host.programs.items() if task != tensorboard.NAME]
    if plan.strategy in _WITHOUT_TENSORFLOW or not known or any("python" in program for program in known):
        return {}
    return dict.fromkeys(("python", "tensorflow", "keras"), "needs a command that starts with a Python")


# ---- programs and packages


def _programs(host: Host) -> Iterator[Finding]:
    for tasks, known in _alike(host):
        if known.get("problem"):
            hint = "create it, or set workdir or sync" if known.get("is_workdir") else "install it, or correct command"
            yield Finding("program", "error", f"{host.host} ({tasks})", str(known["problem"]), hint)
        elif known.get("is_missing"):
            what = known.get("program") or "the module"
            hint = "bring it there with sync, or set workdir"
            yield Finding("program", "error", f"{host.host} ({tasks})", f"{what} is not there", hint)


def _alike(host: Host) -> Iterator[tuple[str, Mapping[str, Any]]]:
    groups: dict[str, tuple[list[str], Mapping[str, Any]]] = {}
    for task, known in host.programs.items():
        groups.setdefault(repr(sorted(known.items())), ([], known))[0].append(task)
    for tasks, known in groups.values():
        yield listed(tasks), known


def _packages(plan: Plan, host: Host) -> Iterator[Finding]:
    if plan.strategy in _WITHOUT_TENSORFLOW or plan.has_setups:  # what `setup` installs is not there yet
        return
    for tasks, known in _alike(host):
        where = f"{host.host} ({tasks})"
        if "python" not in known:
            continue  # not a Python, or already reported
        if known["tensorflow"] is None:
            hint = "have `setup` install tensorflow there, or set hosts.X.python"
            yield Finding("tensorflow", "error", where, "its Python has no TensorFlow", hint)
        elif known["tf_keras"] is None:
            yield from _without_tf_keras(plan.find(tasks.partition(",")[0]), where)


def _without_tf_keras(task: TaskPlan, where: str) -> Iterator[Finding]:
    if task.env.get("TF_USE_LEGACY_KERAS") not in ("1", "true", "True"):
        return
    hint = "install tf-keras of TensorFlow's version, or write legacy_keras: false"
    if task.env.get("TFLAUNCH_LEGACY_KERAS") == AUTO:
        message = "tf_keras is not there, so tf.keras will be Keras 3, whose `fit` cannot train on several workers"
        yield Finding("keras", "warning", where, message, hint)
    else:
        yield Finding("keras", "error", where, "TF_USE_LEGACY_KERAS=1 needs tf_keras, which is not there", hint)


def _skew(hosts: Iterable[Host]) -> Iterator[Finding]:
    checks = {"python": "python", "tensorflow": "tensorflow", "keras": "keras", "tf_keras": "keras"}
    for package, check in checks.items():
        versions: dict[str, list[str]] = {}
        for host in hosts:
            for known in host.programs.values():
                if known.get(package) is not None:
                    versions.setdefault(str(known[package]), []).append(host.host)
        if len({_short(version) for version in versions}) > 1 or (package == "tensorflow" and len(versions) > 1):
            is_fatal = package == "tensorflow" and len({_short(version) for version in versions}) > 1
            told = "; ".join(f"{version} on {listed(list(dict.fromkeys(on)))}" for version, on in versions.items())
            severity = "error" if is_fatal else "warning"
            yield Finding(check, severity, "hosts", f"{package} differs: {told}", "install the same version everywhere")


def _short(version: str) -> tuple[str, ...]:
    return tuple(version.split(".")[:2])


def _differing_programs(hosts: Iterable[Host]) -> Iterator[Finding]:
    contents: dict[str, dict[str, list[str]]] = {}
    for host in hosts:
        for known in host.programs.values():
            if known.get("sha256"):
                name = str(known["program"]).rpartition("/")[2]
                contents.setdefault(name, {}).setdefault(str(known["sha256"]), []).append(host.host)
    for name, by_hash in contents.items():
        if len(by_hash) > 1:
            told = " and ".join(f"on {listed(list(dict.fromkeys(on)))}" for on in by_hash.values())
            yield Finding("program", "error", "hosts", f"{name} is not the same {told}", "bring it there with sync")


# ---- the network


def _connections(plan: Plan, host: Host) -> Iterator[Finding]:
    for problem in preflight.name_problems(host.host, host.names):
        yield Finding("names", "error", host.host, problem, preflight.name_remedy(problem))
    for task, reason in host.refused.items():
        yield Finding("ports", "error", f"{host.host} ({task})", reason, "end that process, or use another port")
    for task, reason in host.unreached.items():
        message = f"cannot reach {task} at {plan.find(task).address}: {reason}"
        hint = "open the port between the hosts, or give hosts.X.address"
        yield Finding("peers", "error", host.host, message, hint)


def _fence(plan: Plan, host: Host) -> Iterator[Finding]:
    if reason := host.facts.get("not_private"):
        message = f"a private network is not possible: {reason}"
        yield Finding("fence", "error", host.host, message, 'allow it there, or write "network": "fenced"')
        return
    if reason := host.facts.get("no_way_out"):
        hint = 'correct that if they need one, or write "network": "fenced"'
        yield Finding("fence", "warning", host.host, port_fence.no_way_out_of(host.host, reason), hint)
    exposed = [task for task, who in reachable_by(plan, host).items() if who == EVERYBODY]
    if exposed and plan.network == OPEN:
        message = "everybody who reaches this host can run code in them through their ports"
        yield Finding("fence", "warning", f"{host.host} ({listed(exposed)})", message, 'leave out "network": "open"')
    elif exposed:
        severity = "error" if plan.network == FENCED_OR_FAIL else "warning"
        message = f"their ports cannot be fenced: {host.facts.get('unfenced')}"
        hint = "keep others out with a firewall, or use another kernel"
        yield Finding("fence", severity, f"{host.host} ({listed(exposed)})", message, hint)


def reachable_by(plan: Plan, host: Host) -> dict[str, str]:
    """Return who could reach the port of each task and sidecar on a host."""
    if plan.network == PRIVATE:
        others = RUN
    elif not port_fence.is_fenced(plan) or host.facts.get("unfenced"):
        others = EVERYBODY
    else:
        others = THIS_MACHINE if len(plan.hosts) == 1 else CLUSTER
    found = {}
    for process in plan.on_host(host.host):
        if tensorboard.is_board(process):
            found[process.task] = THIS_MACHINE
        elif process.address is None or not has_cluster(plan.strategy):
            found[process.task] = NOBODY
        else:
            found[process.task] = others
    return found


def _proxies(plan: Plan) -> Iterator[Finding]:
    for task in plan.tasks:
        no_proxy = task.env.get("no_grpc_proxy", "") or task.env.get("no_proxy", "")
        if task.env.get("grpc_proxy") and policy.forms_cluster(plan) and "*" not in no_proxy:
            message = "grpc_proxy in env: gRPC sends the cluster's own traffic there"
            yield Finding("proxies", "warning", "env", message, "remove grpc_proxy from env, or set no_grpc_proxy to *")
            return


# ---- the hosts themselves


def processes_for(plan: Plan, host: str) -> tuple[TaskPlan, ...]:
    """Return the processes of a host; for a spare host, those that it would get first."""
    if host not in plan.spares:
        return plan.on_host(host)
    first = plan.processes()[0].host
    return tuple(attempts.task_on(plan, process, host) for process in plan.on_host(first))


def _resources(plan: Plan, host: Host) -> Iterator[Finding]:
    if abs(host.offset) > _MOST_OFFSET:
        way = "ahead of" if host.offset > 0 else "behind"
        message = f"its clock is {duration_words(abs(host.offset))} {way} this machine's"
        yield Finding("clock", "warning", host.host, message, "let it follow NTP: times in logs and files mislead")
    for place, free in (host.facts.get("disk") or {}).items():
        if free < _LITTLE_DISK:
            yield Finding("disk", "warning", host.host, f"{free // 2**20} MiB are free at {place}", "make room there")
    tasks = [task for task in processes_for(plan, host.host) if task.role != SIDECAR]
    available = (host.facts.get("memory") or {}).get("available")
    if available is not None and tasks and plan.strategy != "none" and available < _LITTLE_MEMORY * len(tasks):
        message = f"{available // 2**20} MiB of memory are available for {counted(len(tasks), 'task')}"
        yield Finding("memory", "warning", host.host, message, "run fewer tasks there, or end other programs")
    for directory in host.unshared if plan.checkpoints is None else ():
        message = f"{directory} is not the same directory there as on the first host"
        hint = "put checkpoints on storage that all hosts share, or use `checkpoints`: a restart could not go on"
        yield Finding("checkpoints", "warning", host.host, message, hint)
    soft = (host.facts.get("files") or [_FEW_FILES])[0]
    if 0 <= soft < _FEW_FILES:
        message = f"a task may open {soft} files only"
        yield Finding("files", "warning", host.host, message, f"raise the limit there: ulimit -n {_FEW_FILES} or more")


def _gpus(plan: Plan, hosts: Iterable[Host]) -> Iterator[Finding]:
    """Check that GPUs suffice for the spec, and are equally many on hosts."""
    counts: dict[int, list[str]] = {}
    for host in hosts:
        gpus = host.facts.get("gpus", [])
        if gpus is None:
            yield Finding("gpus", "warning", host.host, "nvidia-smi does not answer", "look at its driver")
            continue
        if any(task.host == host.host and task.role in ("chief", "worker") for task in plan.tasks):
            counts.setdefault(len(gpus), []).append(host.host)
        wanted = gpus_assigned(processes_for(plan, host.host))
        if wanted > len(gpus):
            message = f"its tasks get {wanted} GPUs, and it has {len(gpus)}"
            yield Finding("gpus", "error", host.host, message, "correct gpus in roles")
    if len(counts) > 1 and plan.strategy == "multi_worker_mirrored":
        told = "; ".join(f"{count} on {listed(on)}" for count, on in counts.items())
        yield Finding("gpus", "warning", "hosts", f"numbers of GPUs differ: {told}", "give gpus in roles")


def _board(plan: Plan, hosts: Iterable[Host]) -> Iterator[Finding]:
    """Report a missing TensorBoard where it is wanted; the job runs without it."""
    for host in hosts:
        known = host.programs.get(tensorboard.NAME) if tensorboard.tensorboard_of(plan) is not None else None
        if known is not None and (known.get("problem") or known.get("has_tensorboard") is False):
            message = str(known.get("problem") or "its Python has no tensorboard")
            hint = "install tensorboard for that Python, with pip or uv, or set hosts.X.python"
            yield Finding("tensorboard", "warning", f"{host.host} ({tensorboard.NAME})", message, hint)
