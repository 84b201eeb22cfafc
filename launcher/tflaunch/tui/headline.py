"""The first lines of a status: the run, its state, and what went wrong. Pure."""

from tflaunch.explain import assessment, run_status
from tflaunch.explain.wording import counted, growth_words, listed, process_of
from tflaunch.plan.tensorboard import Reach
from tflaunch.tui import formatting
from tflaunch.tui.formatting import Cell
from tflaunch_worker.readable import duration_words

_STYLES = {
    assessment.TRAINING: "green",
    assessment.FIRST_STEP: "green",
    assessment.EVALUATING: "green",
    assessment.STARTING: "cyan",
}


def headline(status: run_status.Status, now: float) -> list[Cell]:
    """Return the parts of the first line; ``now`` is in seconds since the epoch."""
    parts = [Cell(status.run or status.name or "tflaunch", "bold"), _phase(status)]
    if _is_abandoned(status):
        parts.append(Cell("its supervisor is dead", "bold red"))
    parts += [Cell(status.restart or ""), Cell(duration_words(_end(status, now) - status.started))]
    return [part for part in map(_plain, parts) if part.text]


def news(status: run_status.Status, now: float) -> list[Cell]:
    """Return the lines below the headline: why it does not train, what helps, etc.

    ``now`` is in seconds since the epoch.
    """
    because = status.because.strip() if _is_worth_telling(status) else ""
    commands = ", ".join(f"`{' '.join(command)}`" for command in status.next_commands if because)
    hosts = run_status.missing_words(status)
    left = [task for task in status.tasks if task.unended is not None]
    unended = (f"{process_of(task.task, task.host, task.pid)} may still run: {task.unended}" for task in left)
    parts = [
        Cell(because, _style_of_reason(status)),
        Cell(commands and f"next: {commands}", "yellow"),
        *(Cell(text, "bold red") for text in unended),
        *(Cell(_growth(task, now), "yellow") for task in status.tasks if task.memory_full_at is not None),
        *_not_formed(status),
        Cell("" if status.tensorboard is None else _board(status.tensorboard), "cyan"),
        Cell("" if hosts in because else hosts, "yellow"),
        Cell("" if status.checkpoint is None else _checkpoint(status.checkpoint)),
        Cell(_spares(status), "yellow"),
        Cell(_refused(status) if status.outsiders else "", "yellow"),
    ]
    return [part for part in map(_plain, parts) if part.text]


def _plain(part: Cell) -> Cell:
    return part._replace(text=formatting.plain(part.text))


def _is_worth_telling(status: run_status.Status) -> bool:
    """Return whether a run needs more than the table, as it does not go as expected."""
    is_early = status.phase in (assessment.STARTING, assessment.FORMING) and not status.next_commands
    is_unseen = status.phase == assessment.FIRST_STEP and status.trains == assessment.UNKNOWN
    has_succeeded = status.phase in (assessment.EVALUATING, assessment.ENDING) and not status.reason
    is_usual = is_early or is_unseen or (has_succeeded and not _is_abandoned(status))
    return bool(status.last_failure) or not (is_usual or status.trains == assessment.YES or status.exit_code == 0)


def _style_of_reason(status: run_status.Status) -> str:
    if status.exit_code is not None:
        return "red"
    return "bold yellow" if status.phase in (assessment.HANGING, assessment.WAITING, assessment.FORMING) else "yellow"


def _growth(task: run_status.TaskStatus, now: float) -> str:
    left = max((task.memory_full_at or 0.0) - now, 0.0)
    return growth_words(task.task, task.memory_growth or 0.0, left)


def _is_abandoned(status: run_status.Status) -> bool:
    return status.supervisor == "dead" and status.exit_code is None


def _not_formed(status: run_status.Status) -> list[Cell]:
    """Return advice on a cluster that does not form; at the end, also who was missing."""
    found = status.forming
    if found is None or status.exit_code == 0:
        return []
    hint = Cell(f"hint: {found.hint}")
    if status.phase != assessment.ENDED:
        return [hint]
    return [Cell(f"cluster not formed: {listed(found.missing)} never listened"), hint]


def _phase(status: run_status.Status) -> Cell:
    code = status.exit_code
    if status.phase != assessment.ENDED or code is None:
        return Cell(status.phase, _STYLES.get(status.phase, "yellow"))
    if status.state == "failed":
        return Cell(f"failed ({code})", "bold red")
    return Cell(status.state, "yellow" if code else "green")


def _end(status: run_status.Status, now: float) -> float:
    """Return when the job ended, judging by its tasks; ``now`` if it has not."""
    if status.phase != assessment.ENDED:
        return now
    return max((task.since for task in status.tasks if task.role != "sidecar" and task.since is not None), default=now)


def _spares(status: run_status.Status) -> str:
    """Return which spare hosts have replaced others, and how many are left, or ""."""
    spares = [host for host in status.hosts if host.is_spare]
    missing = [host for host in spares if host.state in run_status.MISSING]
    moved = [host for host in status.hosts if host.replaces]
    if not (missing or moved) or status.phase == assessment.ENDED:
        return ""
    parts = [f"{host.host} is in the place of {host.replaces}" for host in moved]
    parts.append(f"{counted(len(spares) - len(missing), 'spare host')} left")
    return "; ".join([*parts, *map(run_status.host_words, missing)])


def _refused(status: run_status.Status) -> str:
    """Return from where connections were refused; if known, how many, to which tasks."""
    refused = {task.task: int(task.refused_connections) for task in status.tasks if task.refused_connections}
    what = counted(sum(refused.values()), "connection") if refused else "connections"
    where = f" ({listed(list(refused))})" if refused else ""
    return f"port fence: {what} from {listed(status.outsiders)} refused{where}"


def _checkpoint(found: run_status.CheckpointStatus) -> str:
    step = "" if found.step is None else f" (step {found.step})"
    hosts = f"on {listed(found.hosts)} and " if found.hosts else ""
    return f"newest safe checkpoint: {found.name}{step}, {hosts}in the run's directory"


def _board(board: Reach) -> str:
    where = f" on {board.host}" if board.host else ""
    return f"TensorBoard: {board.url}{where}{f', after {board.tunnel}' if board.tunnel else ''}"
