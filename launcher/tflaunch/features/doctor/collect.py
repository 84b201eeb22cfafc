"""Examine all hosts of a plan, without starting the job."""

import contextlib
import json
import os
import re
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import tflaunch_worker
from tflaunch.agents.calls import UserCode
from tflaunch.core import policy, preflight
from tflaunch.features.doctor.findings import Host, processes_for
from tflaunch.features.rpc import AgentRpc
from tflaunch.plan import attempts
from tflaunch.plan.model import PRIVATE, Plan, TaskPlan
from tflaunch.store.run_dir import home
from tflaunch.transport.base import AgentConnector, AgentGoneError, LinkError
from tflaunch.transport.connect import connectors_for

_AT_ONCE = 128
_PATIENCE = 30.0  # seconds to wait for what should take one
_OF_TASK = ("TFLAUNCH_TASK", "TF_CONFIG", "CUDA_VISIBLE_DEVICES")
_PYTHON = re.compile(r"python[\d.]*")
_DIRECTORY_OPTION = re.compile(r"--[\w-]*(dir|ckpt|checkpoint|backup|state)[\w-]*")


class _Visit:
    """Collects facts about one host; a failing step marks it as unreachable."""

    def __init__(self, plan: Plan, host: str, connector: AgentConnector, run: str) -> None:
        self.known = Host(host)
        self.ports: dict[str, int] = {}
        self.backups: set[str] = set()
        self._has_code = False
        self._plan = plan
        self._connector = connector
        self._run = run
        self._agent: AgentRpc | None = None

    def attempt(self, step: Callable[..., None], *about: Any) -> None:
        """Run a step, unless an earlier one has failed to reach the host."""
        if self._agent is not None:
            try:
                step(self, self._agent, *about)
            except (LinkError, KeyError, TypeError, ValueError) as error:
                self.known = Host(self.known.host, reason=str(error) or type(error).__name__)

    def reach(self) -> None:
        try:
            self._agent = AgentRpc(self._connector.open(), self._run)
        except (LinkError, AgentGoneError) as error:
            self.known = Host(self.known.host, reason=str(error))

    def leave(self) -> None:
        """Dismiss the agent, and wait for its exit."""
        if self._agent is not None:
            if self._has_code:
                with contextlib.suppress(LinkError):
                    self._agent.call("remove_code", _PATIENCE)
            self._agent.close()
            self._connector.end()

    def bring_code(self, agent: AgentRpc, code: UserCode) -> None:
        if not self._plan.host(self.known.host).is_like_here:
            self._has_code = True
            agent.send_code(code, _PATIENCE)

    def ask_about_itself(self, agent: AgentRpc) -> None:
        groups: dict[str, list[TaskPlan]] = {}
        for task in processes_for(self._plan, self.known.host):
            groups.setdefault(_gist(task), []).append(task)
        programs = [_program(self._plan, tasks[0]) for tasks in groups.values()]
        probe = (Path(tflaunch_worker.__file__).parent / "features" / "doctor" / "probe.py").read_text("utf-8")
        asked = time.time()
        is_private = self._plan.network == PRIVATE
        answer, _ = agent.call("examine", _PATIENCE, programs=programs, probe=probe, private=is_private)
        facts: Mapping[str, Any] = answer["facts"]
        known: dict[str, Mapping[str, Any]] = {}
        for tasks, program in zip(groups.values(), facts["programs"], strict=True):
            known.update({task.task: program for task in tasks})
            self.backups |= _backups(tasks, program)
        # The host read its clock between our question and its answer, most probably just before the answer.
        offset = float(facts["time"]) - time.time()
        offset = 0.0 if asked - 0.5 <= float(facts["time"]) <= time.time() + 0.5 else offset
        names = preflight.names_to_find(self._plan, [self.known.host], self._plan.spares).get(self.known.host, ())
        found = {}
        if names:
            found = agent.order("look_up_names", "names_resolved", wait=_PATIENCE, names=names)["found"]
        rest = {name: value for name, value in facts.items() if name != "programs"}
        self.known = self.known._replace(programs=known, facts=rest, offset=offset, names=found)

    def hold_ports(self, agent: AgentRpc) -> None:
        wanted = {task.task: attempts.wanted_port(task) for task in self._plan.tasks}
        here = processes_for(self._plan, self.known.host)
        mine = {task.task: wanted[task.task] for task in here if task.task in wanted}
        if not mine or self.known.host in self._plan.spares or not policy.forms_cluster(self._plan):
            return
        answer = agent.order("hold_ports", "ports_held", "ports_refused", wait=_PATIENCE, ports=mine)
        if answer["kind"] == "ports_held":
            self.ports = {str(task): int(port) for task, port in answer["ports"].items()}
        else:
            self.known = self.known._replace(refused=dict(answer["refused"]))

    def probe_peers(self, agent: AgentRpc, wanted: Mapping[str, dict[str, Any]]) -> None:
        if about := wanted.get(self.known.host):
            seconds = self._plan.timeouts.connect
            answer = agent.order("probe_peers", "peers_probed", wait=seconds + _PATIENCE, patience=seconds, **about)
            self.known = self.known._replace(unreached=dict(answer["failed"]))

    def leave_marks(self, agent: AgentRpc, token: str, marks: dict[str, str]) -> None:
        answer, _ = agent.call("leave_marks", _PATIENCE, directories=sorted(self.backups), token=token)
        marks.update({place: path for place, path in answer["places"].items() if path is not None})

    def look_for_marks(self, agent: AgentRpc, marks: Mapping[str, str]) -> None:
        paths = [path for place, path in marks.items() if place in self.backups]
        answer, _ = agent.call("look_for_marks", _PATIENCE, paths=paths)
        unshared = tuple(place for place in self.backups if place in marks and marks[place] not in answer["seen"])
        self.known = self.known._replace(unshared=unshared)

    def remove_marks(self, agent: AgentRpc, marks: Mapping[str, str]) -> None:
        agent.call("remove_marks", _PATIENCE, paths=list(marks.values()))


def examine(plan: Plan, code: UserCode | None, run: str) -> dict[str, Host]:
    """Return the facts about every host of a plan, asked in parallel rounds.

    First each host gets the user's code as `up` would send it, is examined, and holds the ports of its tasks.
    Then each tries to reach the others. Finally the first host that uses a checkpoint directory leaves a probe file
    there, which the others look for. The code is removed from them again.
    """
    path = home() / "doctor" / run  # this machine's agent removes what it has there
    connectors = connectors_for(plan, path)
    visits = [_Visit(plan, host, connector, run) for host, connector in connectors.items()]
    with ThreadPoolExecutor(min(len(visits), _AT_ONCE), "visit") as pool:  # no limit: its threads have theirs

        def everywhere(step: Callable[..., None], *about: Any, among: Iterable[_Visit] = visits) -> None:
            list(pool.map(lambda visit: visit.attempt(step, *about), among))

        try:
            list(pool.map(_Visit.reach, visits))
            if code is not None:
                everywhere(_Visit.bring_code, code)
            everywhere(_Visit.ask_about_itself)
            everywhere(_Visit.hold_ports)
            everywhere(_Visit.probe_peers, _peers(plan, visits, run))
            marks: dict[str, str] = {}
            with_backups = [visit for visit in visits if visit.backups]
            if len(with_backups) > 1:
                everywhere(_Visit.leave_marks, os.urandom(8).hex(), marks, among=with_backups[:1])
            if marks:
                everywhere(_Visit.look_for_marks, marks, among=with_backups[1:])
                everywhere(_Visit.remove_marks, marks, among=with_backups[:1])
        finally:
            list(pool.map(_Visit.leave, visits))
    return {visit.known.host: visit.known for visit in visits}


def _gist(task: TaskPlan) -> str:
    """Return a key that is equal for tasks with the same interpreter and environment."""
    env = {name: value for name, value in task.env.items() if name not in _OF_TASK}
    return json.dumps([task.argv, task.workdir, env], sort_keys=True)


def _program(plan: Plan, task: TaskPlan) -> dict[str, Any]:
    """Return the fields by which a host examines a task's interpreter."""
    host = plan.host(task.host)
    name = task.argv[0]
    about = {"argv": task.argv, "env": dict(task.env), "unset": task.unset, "workdir": task.workdir}
    is_python = name == host.python or bool(_PYTHON.fullmatch(name.rpartition("/")[2]))
    return {**about, "inherit": host.inherits_environment, "is_python": is_python}


def _peers(plan: Plan, visits: list[_Visit], run: str) -> dict[str, dict[str, Any]]:
    """Return the tasks that each host is to probe: those with held ports."""
    ports = {task: port for visit in visits for task, port in visit.ports.items()}
    secret = os.urandom(16).hex()
    wanted = {}
    for host, action in preflight.peers_to_try(attempts.resolve(plan, ports), plan.spares).items():
        mine = {task: port for task, port in action.ports.items() if task in ports}
        others = {task: place for task, place in action.peers.items() if task in ports}
        wanted[host] = {"ports": mine, "peers": others, "run": run, "secret": secret}
    return wanted


def _backups(tasks: list[TaskPlan], program: Mapping[str, Any]) -> set[str]:
    """Return the directories of BackupAndRestore, as far as detectable."""
    if not program.get("backs_up"):
        return set()
    found = {str(path) for path in program.get("backups", ())}
    argv = tasks[0].argv
    for word, following in zip(argv, (*argv[1:], ""), strict=True):
        option, equals, value = word.partition("=")
        if _DIRECTORY_OPTION.fullmatch(option):
            found.add(value if equals else following)
    return {os.path.join(tasks[0].workdir, path) for path in found if path and not path.startswith("-")}
