"""The first lines of a status: the run, its state, and what went wrong. Pure."""

from collections.abc import Sequence

from tflaunch.explain import run_status
from tflaunch.explain.wording import counted, growth_words, listed, process_of
from tflaunch.plan.tensorboard import Reach
from tflaunch.tui import formatting
from tflaunch.tui.formatting import Cell
from tflaunch_worker.readable import duration_words

_STYLES = {"running": "green", "ended": "", "joining": "cyan", "preparing": "cyan"}


def headline(status: run_status.Status, now: float) -> list[Cell]:
    """Return the parts of the first line; ``now`` is in seconds since the epoch."""
    name = formatting.plain(status.run) or formatting.plain(status.name) or "tflaunch"
    parts = [Cell(name, "bold"), _phase(status), Cell(_forming(status, now), "bold yellow")]
    if _is_abandoned(status):
        parts.append(Cell("its supervisor is dead", "bold red"))
    parts.append(Cell(formatting.plain(status.restart)))
    parts.append(Cell(duration_words(_end(status, now) - status.started)))
    return [part for part in parts if part.text]


def news(status: run_status.Status, now: float) -> list[Cell]:
    """Return the lines below the headline: reason, breakpoints, missing hosts etc.

    ``now`` is in seconds since the epoch.
    """
    absences = [words for host in run_status.needed_hosts(status) if (words := run_status.absence_words(host, now))]
    parts = [Cell(formatting.plain(words), "bold yellow") for words in absences]
    reason, culprit = formatting.plain(status.reason).strip(), formatting.plain(status.culprit)
    if (reason or culprit) and not absences:
        sentence = reason if culprit in reason or culprit == "tflaunch" else f"{culprit}: {reason}".removesuffix(": ")
        parts.append(Cell(sentence, "red" if status.phase == "ended" else "yellow"))
    last = formatting.plain(status.last_failure).strip()
    if last and not parts:
        parts.append(Cell(f"last restart: {last}", "yellow"))
    if _is_abandoned(status):
        run = formatting.plain(status.run)
        parts.append(Cell(f"next: `tflaunch up --resume {run}`, or `tflaunch down {run}`", "yellow"))
    parts += [Cell(_breakpoint(status, task), "bold yellow") for task in status.tasks if task.breakpoint is not None]
    parts += [Cell(_unended(task), "bold red") for task in status.tasks if task.unended is not None]
    parts += [Cell(_growth(task, now), "yellow") for task in status.tasks if task.memory_full_at is not None]
    parts += [Cell(_hang(status.hang, now), "bold yellow")] if status.hang is not None else []
    parts += _not_formed(status)
    if status.tensorboard is not None:
        parts.append(Cell(_board(status.tensorboard), "cyan"))
    hosts = formatting.plain(run_status.missing_words(status))
    if hosts:
        parts.append(Cell(hosts, "yellow"))
    if status.checkpoint is not None:
        parts.append(Cell(_checkpoint(status.checkpoint)))
    if spares := _spares(status):
        parts.append(Cell(spares, "yellow"))
    if status.outsiders:
        parts.append(Cell(_refused(status), "yellow"))
    return parts


def _breakpoint(status: run_status.Status, task: run_status.TaskStatus) -> str:
    name, run = formatting.plain(task.task), formatting.plain(status.run)
    return f"{name} waits at a breakpoint in {formatting.plain(task.breakpoint)}: tflaunch debug {run} {name}"


def _unended(task: run_status.TaskStatus) -> str:
    return formatting.plain(f"{process_of(task.task, task.host, task.pid)} may still run: {task.unended}")


def _growth(task: run_status.TaskStatus, now: float) -> str:
    left = max((task.memory_full_at or 0.0) - now, 0.0)
    return growth_words(formatting.plain(task.task), task.memory_growth or 0.0, left)


def _is_abandoned(status: run_status.Status) -> bool:
    return status.supervisor == "dead" and status.phase != "ended"


def _forming(status: run_status.Status, now: float) -> str:
    """Return which tasks keep the cluster from forming, and for how long; "" if none."""
    if status.forming is None or status.phase != "running":
        return ""
    waited = duration_words(now - status.forming.since)
    return f"cluster not formed: waiting {waited} for {_listed(status.forming.missing)}"


def _hang(hang: run_status.HangStatus, now: float) -> str:
    return f"hangs for {duration_words(now - hang.since)}: {formatting.plain(hang.sentence)}"


def _not_formed(status: run_status.Status) -> list[Cell]:
    """Return advice on a cluster that does not form; at the end, also who was missing."""
    found = status.forming
    if found is None or status.exit_code == 0:
        return []
    hint = Cell(f"hint: {formatting.plain(found.hint)}")
    if status.phase == "running":
        return [hint]
    return [Cell(f"cluster not formed: {_listed(found.missing)} never listened"), hint]


def _listed(names: Sequence[str]) -> str:
    return listed([formatting.plain(name) for name in names])


def _phase(status: run_status.Status) -> Cell:
    phase, code = formatting.plain(status.phase), status.exit_code
    if phase == "ended" and code is not None:
        if status.state == "failed":
            return Cell(f"failed ({code})", "bold red")
        return Cell(formatting.plain(status.state), "yellow" if code else "green")
    return Cell(phase.replace("_", " "), _STYLES.get(phase, "yellow"))


def _end(status: run_status.Status, now: float) -> float:
    """Return when the job ended, judging by its tasks; ``now`` if it has not."""
    if status.phase != "ended":
        return now
    return max((task.since for task in status.tasks if task.role != "sidecar" and task.since is not None), default=now)


def _spares(status: run_status.Status) -> str:
    """Return which spare hosts have replaced others, and how many are left, or ""."""
    spares = [host for host in status.hosts if host.is_spare]
    missing = [host for host in spares if host.state in run_status.MISSING]
    moved = [host for host in status.hosts if host.replaces]
    if not (missing or moved) or status.phase == "ended":
        return ""
    parts = [f"{formatting.plain(host.host)} is in the place of {formatting.plain(host.replaces)}" for host in moved]
    parts.append(f"{counted(len(spares) - len(missing), 'spare host')} left")
    return "; ".join([*parts, *(formatting.plain(run_status.host_words(host)) for host in missing)])


def _refused(status: run_status.Status) -> str:
    """Return from where connections were refused; if known, how many, to which tasks."""
    refused = {task.task: int(task.refused_connections) for task in status.tasks if task.refused_connections}
    what = counted(sum(refused.values()), "connection") if refused else "connections"
    where = f" ({_listed(list(refused))})" if refused else ""
    return f"port fence: {what} from {_listed(status.outsiders)} refused{where}"


def _checkpoint(found: run_status.CheckpointStatus) -> str:
    step = "" if found.step is None else f" (step {found.step})"
    hosts = f"on {_listed(found.hosts)} and " if found.hosts else ""
    return f"newest safe checkpoint: {formatting.plain(found.name)}{step}, {hosts}in the run's directory"


def _board(board: Reach) -> str:
    host, way = formatting.plain(board.host), formatting.plain(board.tunnel)
    where = f" on {host}" if host else ""
    return f"TensorBoard: {formatting.plain(board.url)}{where}{f', after {way}' if way else ''}"
