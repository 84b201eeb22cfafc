"""Find out from stacks which task the others wait for. Explains, never decides.

Pure: evidence and the run's status in, a verdict out. In synchronous training all tasks stop when one does, so the
innermost line of the user's code tells them apart: the task that waits for something of its own is the culprit, and
those inside a call of TensorFlow wait for it. A task that ran between the two samples of the evidence is not accused.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from tflaunch.core import policy
from tflaunch.core.job_state import Job
from tflaunch.explain import cluster_formation
from tflaunch.explain.run_status import Status, TaskStatus
from tflaunch.explain.wording import listed
from tflaunch.features.hang.evidence import Evidence, Socket
from tflaunch.features.hang.position import IDLE, LONG, Group, Kind, Position, grouped, is_in_library, position_of
from tflaunch.plan.model import SIDECAR
from tflaunch_worker.readable import age_words, duration_words

_TRAINERS = ("chief", "worker", "ps")
_SOON = 8.0  # seconds since the last output or step, before which a task may just be slow
_LONG_IN_LOOP = 15.0  # as `LONG`, for tasks whose own code runs or polls, not a library that may work for minutes
_OWN_FAULT = (Kind.STOPPED, Kind.DEBUGGED, Kind.INPUT, Kind.FILE, Kind.OWN)
_WAITING = (Kind.LIBRARY, Kind.FORMS, Kind.SERVES)


class Verdict(NamedTuple):
    """Why a run does not go on, if it does not.

    ``culprits`` are the tasks for which the others wait, empty if none is certain; ``groups`` has the smallest first.
    """

    sentence: str
    culprits: tuple[str, ...]
    groups: tuple[Group, ...]


class Stacks(NamedTuple):
    """Where tasks are, and which of them the others wait for."""

    run: str
    sentence: str
    culprits: tuple[str, ...]
    groups: tuple[Group, ...]
    silent_hosts: Sequence[str]
    tasks: Sequence[Evidence]


def verdict(status: Status, evidence: Mapping[str, Evidence], is_over: bool = False) -> Verdict:
    """Return why the run does not go on, as far as evidence by task shows it.

    ``is_over``: a limit of their silence is over: then tasks that wait are to blame, even if none waits for them.
    """
    positions = [position_of(task, evidence.get(task.task)) for task in status.tasks]
    groups = grouped([at for at in positions if at.kind is not Kind.ENDED])
    trainers = {task.task: task for task in status.tasks if task.role in _TRAINERS}
    sidecars = {task.task for task in status.tasks if task.role == SIDECAR}
    training = [at for at in positions if at.task in trainers]
    found = (
        _stopped_sidecar(positions, sidecars, trainers, evidence)
        or _without_server(trainers, training)
        or _find_culprit(trainers, training, evidence, is_over)
    )
    if found is None:
        return Verdict(_all_well(positions), (), groups)
    sentence, culprits = found
    age = _last_sign([at for at in positions if at.task in culprits], trainers, evidence)
    if age < _SOON and not is_over:
        again = f"ask again in {duration_words(_SOON - age)}"
        return Verdict(f"no verdict yet: the last output or step was {age_words(age)}; {again}", (), groups)
    groups = tuple(sorted(groups, key=lambda group: not set(group.tasks) & set(culprits)))
    return Verdict(sentence, culprits, groups)


# ---- the culprit

_Found = tuple[str, tuple[str, ...]] | None
_Tasks = Mapping[str, TaskStatus]
_Known = Mapping[str, Evidence]
_Positions = Sequence[Position]


def _find_culprit(tasks: _Tasks, positions: _Positions, evidence: _Known, is_over: bool) -> _Found:
    """Return a sentence and the culprits; None if the run goes on or no cause shows."""
    waiting = [at for at in positions if at.kind in _WAITING and at.is_stuck]
    guilty = [at for at in positions if at.kind in _OWN_FAULT and at.is_stuck]
    if any(at.kind is not Kind.SERVES for at in waiting):  # else, all may be ending
        guilty += [at for at in positions if at.kind is Kind.EXITS and at.is_stuck]
    late = {name for name, task in tasks.items() if task.waiting_since}
    if any(at.kind is Kind.FORMS for at in waiting) or late:
        missing = [at for at in positions if tasks[at.task].listening is False and at.kind is not Kind.FORMS]
        expected = [task for task in tasks.values() if task.listening is not None]
        if missing and len(missing) < len(expected):  # otherwise no task waits for them
            return _not_listening(tasks, missing, waiting, evidence, late)
    worst = [at for at in guilty if at.kind in (Kind.STOPPED, Kind.DEBUGGED)] or guilty
    held_up = [at for at in waiting if at.kind is not Kind.SERVES]
    if worst:
        found = _stuck(tasks, worst, waiting, positions, evidence, is_over)
        return found and (_alone(worst, held_up, evidence) or found)
    ended = [at for at in positions if at.kind is Kind.ENDED and tasks[at.task].role != "ps"]
    if ended and held_up and not _working(positions):
        return _sentence(ended, held_up, evidence), tuple(at.task for at in ended)
    busy = _working(positions)
    limit = _LONG_IN_LOOP if all(at.own == at.inner for at in busy) else LONG
    if busy and held_up and (is_over or _silence([*busy, *held_up], evidence) >= limit):
        return _alone(busy, held_up, evidence) or (_sentence(busy, held_up, evidence), tuple(at.task for at in busy))
    if busy or not held_up or len(held_up) + len(ended) < len([at for at in positions if at.kind is not Kind.SERVES]):
        return None
    servers = [at for at in positions if at.kind is Kind.SERVES]
    return _apart(held_up, evidence) or _served(held_up, servers)


def _stopped_sidecar(
    positions: _Positions, sidecars: Collection[str], trainers: Collection[str], evidence: _Known
) -> _Found:
    """Blame a stopped sidecar, say a data service, if trainers all wait in TensorFlow."""
    stopped = [at for at in positions if at.task in sidecars and at.kind in (Kind.STOPPED, Kind.DEBUGGED)]
    training = [at for at in positions if at.task in trainers and at.kind is not Kind.ENDED]
    waiting = [at for at in training if at.kind in _WAITING and at.is_stuck]
    if not stopped or len(waiting) < len(training) or all(at.kind is Kind.SERVES for at in waiting):
        return None
    held_up = [at for at in waiting if at.kind is not Kind.SERVES]
    return _sentence(stopped, held_up, evidence), tuple(at.task for at in stopped)


def _without_server(tasks: _Tasks, positions: _Positions) -> _Found:
    """Blame workers and ps with the chief's program: servers never wait for a cluster."""
    forming = [at for at in positions if at.kind is Kind.FORMS]
    missing = [at for at in forming if tasks[at.task].role != "chief" and tasks[at.task].listening is False]
    if not missing or all(task.role != "ps" for task in tasks.values()):
        return None
    names, waiters = listed([at.task for at in missing]), _waiters([at for at in forming if at not in missing])
    does = f"never started a server, but run the chief's program{_at(missing[0])}"
    return f'{names} {does}{waiters}; set "server": true for these roles', tuple(at.task for at in missing)


def _alone(sleeping: _Positions, waiting: _Positions, evidence: _Known) -> _Found:
    """Blame a lone task in TensorFlow if others sleep at one line, maybe awaiting it."""
    is_alone = len(waiting) == 1 < len(sleeping) and waiting[0].kind is Kind.LIBRARY
    if not is_alone or len(grouped(sleeping)) > 1 or sleeping[0].does not in IDLE:
        return None
    return _sentence(waiting, sleeping, evidence), (waiting[0].task,)


def _working(positions: _Positions) -> list[Position]:
    return [at for at in positions if at.kind in (Kind.WORKS, Kind.TRACES)]


def _not_listening(
    tasks: _Tasks, missing: _Positions, waiting: _Positions, evidence: _Known, overdue: Collection[str]
) -> _Found:
    """Blame tasks that do not listen on their ports, unless they are still starting."""
    late = [at for at in missing if at.is_stuck or at.task in overdue or _step(evidence.get(at.task))]
    if not late:
        return None
    first, port = late[0], (tasks[late[0].task].address or "").rpartition(":")[2]
    names = listed([at.task for at in late])
    has = "does not listen on its port" if len(late) == 1 else "do not listen on their ports"
    others = [socket.local for socket in _sockets(evidence.get(first.task)) if socket.state == "listening"]
    elsewhere = f" {port}, but at {listed(others)}" if others and len(late) == 1 else ""
    known = "" if first.kind in (Kind.WORKS, Kind.UNKNOWN) and not first.place else f": it {first.does}{_at(first)}"
    waiters = _waiters([at for at in waiting if at not in late])
    return f"{names} {has}{elsewhere}{known if len(late) == 1 else ''}{waiters}", tuple(at.task for at in late)


def _stuck(
    tasks: _Tasks, guilty: _Positions, waiting: _Positions, positions: _Positions, evidence: _Known, is_over: bool
) -> _Found:
    """Blame tasks that wait for a person's action, or in their own code.

    If others work, it blames the latter only after a while. Tasks for which no other one waits may just have nothing to
    do, above all in a job without a cluster, unless they have been silent for longer than the user allows.
    """
    polls = [at for at in _working(positions) if at.does in IDLE and guilty[0].kind is Kind.FILE]  # a coordinator
    others = [at for at in waiting if at.kind is not Kind.SERVES] or polls
    patience = 0.0 if is_over else _LONG_IN_LOOP
    needs_person = guilty[0].kind in (Kind.STOPPED, Kind.DEBUGGED)
    if not needs_person and not others:
        is_cluster = any(task.listening is not None for task in tasks.values())
        is_slow = not is_cluster or _last_sign(guilty, tasks, evidence) < _LONG_IN_LOOP
        if (_working(positions) or is_slow) and not is_over:
            return None
    elif not needs_person and _working(positions) and _silence([*guilty, *polls], evidence) < patience:
        return None
    first, *more = grouped(guilty)
    blamed = [at for at in guilty if at.task in first.tasks]
    if more and not others and len(first.tasks) < len(more[0].tasks):
        return _sentence(blamed, [at for at in guilty if at not in blamed], evidence), first.tasks
    also = "".join(f"; {listed(each.tasks)}: {each.does}{_at(each)}" for each in more)
    is_tied = more and not others  # nothing shows which of them waits for the other
    return _sentence(blamed, others, evidence) + also, () if is_tied else tuple(at.task for at in guilty)


def _apart(waiting: _Positions, evidence: _Known) -> _Found:
    """Tell tasks apart that wait in TensorFlow: by connections, steps, lines of code."""
    for at in waiting:
        for socket in _sockets(evidence.get(at.task)):
            if socket.is_stuck or socket.state == "connecting":
                what = "is not answered" if socket.is_stuck else "is not accepted"
                return f"the connection of {at.task} to {socket.peer} {what}{_waiters(waiting)}", (at.task,)
    steps = {at.task: _step(evidence.get(at.task)) for at in waiting}
    known = [step for step in steps.values() if step is not None]
    apart = [at for at in waiting if at.task in grouped(waiting)[0].tasks]
    if len(apart) == len(waiting) == len(known):
        apart = [at for at in waiting if steps[at.task] == min(known)]
    if len(apart) < len(waiting):
        others = [at for at in waiting if at not in apart]
        sentence = _sentence(apart, others, evidence) + _called_alone(apart[0], others)
        return sentence, tuple(at.task for at in apart)
    if len(waiting) < 2:
        return None
    names, at = listed([each.task for each in waiting]), waiting[0]
    return f"{names} wait for each other in the same call{_at(at)}: {at.does}", ()


def _served(waiting: _Positions, servers: _Positions) -> _Found:
    """Say that a coordinator waits for idle servers, which blames none of them."""
    if not servers:
        return None
    at, names = waiting[0], listed([each.task for each in servers])
    verb = "serves" if len(servers) == 1 else "serve"
    return f"{at.task} {at.does}{_at(at)}; {names} {verb}, without a step that computes", ()


def _called_alone(alone: Position, others: _Positions) -> str:
    """Explain a TensorFlow call that only some tasks have reached; "" for any other."""
    is_elsewhere = alone.kind is Kind.LIBRARY and all(at.kind is Kind.LIBRARY for at in others)
    if not is_elsewhere or any(at.place == alone.place for at in others):
        return ""
    return f"; if all tasks take part in {alone.call}, as in a collective operation, each of them must call it"


def _step(evidence: Evidence | None) -> float | None:
    return None if evidence is None or evidence.progress is None else evidence.progress.step


def _sockets(evidence: Evidence | None) -> list[Socket]:
    return [] if evidence is None else [socket for process in evidence.processes for socket in process.sockets]


def _silence(positions: _Positions, evidence: _Known) -> float:
    """Return the seconds since the latest sign of life of any of these tasks."""
    known = [evidence[at.task] for at in positions if at.task in evidence]
    signs = [sign for each in known for sign in (each.silence, each.progress and each.progress.age) if sign is not None]
    return min(signs, default=0.0)


def _last_sign(guilty: _Positions, trainers: _Tasks, evidence: _Known) -> float:
    """Return seconds since the last sign of progress; infinite if none is expected.

    That is output or a step of a culprit or, unless workers of parameter servers go on alone, a step of any task.
    """
    if any(at.kind in (Kind.STOPPED, Kind.DEBUGGED, Kind.ENDED) for at in guilty):
        return math.inf
    is_synchronous = all(task.role != "ps" for task in trainers.values())
    names = {at.task for at in guilty}
    signs = [known.silence for name, known in evidence.items() if name in names]
    stepping = [known for name, known in evidence.items() if name in names or (is_synchronous and name in trainers)]
    signs += [known.progress.age for known in stepping if known.progress is not None]
    return min((sign for sign in signs if sign is not None), default=math.inf)


# ---- sentences


def _sentence(guilty: _Positions, waiting: _Positions, evidence: _Known) -> str:
    first = guilty[0]
    names = listed([at.task for at in guilty])
    does = first.does if len(guilty) == 1 else _plural(first.does)
    step = _step(evidence.get(first.task))
    since = f" since step {step:.0f}" if step else ""
    if first.kind is Kind.INPUT:
        does = f"{'has' if len(guilty) == 1 else 'have'} read no batch"
        does += f"{since}{_at(first)}: {first.does.partition(': ')[2]}"
        return f"{names} {does}{_waiters(waiting)}"
    silence = _silence(guilty, evidence)
    silent = f", silent for {duration_words(silence)}" if silence >= 1 and not since else ""
    remedy = f"; `tflaunch kill -s CONT {first.task}` continues it" if first.does.endswith("(SIGSTOP)") else ""
    return f"{names} {does}{_at(first)}{since}{silent}{_waiters(waiting)}{remedy}"


def _plural(does: str) -> str:
    first, _, rest = does.partition(" ")
    return f"{ {'is': 'are', 'has': 'have', 'does': 'do'}.get(first, first.removesuffix('s')) } {rest}".strip()


def _at(at: Position | Group) -> str:
    return f" ({at.place})" if at.place else ""


def _waiters(waiting: _Positions) -> str:
    if not waiting:
        return ""
    wait = "waits" if len(waiting) == 1 else "wait"
    where = f" in {waiting[0].place}" if waiting[0].place and len(grouped(waiting)) == 1 else ""
    return f"; {listed([at.task for at in waiting])} {wait} for it{where}"


def _all_well(positions: _Positions) -> str:
    alive = [at for at in positions if at.kind is not Kind.ENDED]
    if not alive:
        return "no task is alive"
    if any(at.kind is Kind.UNKNOWN and at.does == "is disconnected" for at in alive):
        return f"no verdict: {listed([at.task for at in alive if at.does == 'is disconnected'])} cannot be heard"
    working = [at.task for at in alive if not at.is_stuck]
    if working:
        return f"no task is stuck: {listed(working)} ran just now"
    return "all tasks wait, and none holds up the rest"


# ---- tasks that do not listen on their ports in time


def explain_late_start(job: Job, status: Status, evidence: Mapping[str, Evidence]) -> str:
    """Describe the tasks that do not listen in time, or the most likely remedy.

    Importing TensorFlow takes minutes on a slow disk or a crowded host, and a program may load data before it makes its
    strategy or server. Only of a task that does neither may one say that it does not use its TF_CONFIG.
    """
    missing = set(policy.waited_for(job))
    positions = [position_of(task, evidence.get(task.task)) for task in status.tasks if task.task in missing]
    importing = [at for at in positions if at.does.startswith("imports ")]
    if importing:
        verb = "imports" if len(importing) == 1 else "import"
        what = f"{listed([at.task for at in importing])} still {verb}{importing[0].does.removeprefix('imports')}"
        return f"{what}: that takes minutes where the disk is slow or many tasks share few CPUs"
    early = [at for at in positions if at.own is not None and not _trains(at, evidence)]
    if not early:
        return cluster_formation.remedy(job)
    first = grouped(early)[-1]
    verb = "has" if len(first.tasks) == 1 else "have"
    what = f"{listed(first.tasks)} {verb} not made a strategy or server yet: {first.does} ({first.place})"
    return f'{what}; for tasks that need none, set "strategy": "none"'


def _trains(at: Position, evidence: Mapping[str, Evidence]) -> bool:
    """Return whether a task may train without its cluster: by its stack or a step."""
    found = evidence[at.task]
    has_stepped = found.progress is not None and found.progress.step is not None
    return has_stepped or any(is_in_library(process) for process in found.processes)
