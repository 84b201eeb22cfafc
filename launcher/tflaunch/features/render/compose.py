"""Render a plan as a docker-compose file, with a service per task."""

import itertools
import re
from collections.abc import Mapping, Sequence
from typing import Any

from tflaunch.clusterspec.model import Resources, Spec
from tflaunch.clusterspec.values import is_ip_address
from tflaunch.core import policy
from tflaunch.features.render import yaml_text
from tflaunch.features.render.target_plan import devices, program, without_devices
from tflaunch.plan import tensorboard
from tflaunch.plan.model import SIDECAR, Plan, TaskPlan

_HEAD = """\
Made by `tflaunch render --to compose`. It starts the tasks of {name} as containers, without restarts:
  {variable}docker-compose -f FILE up --exit-code-from {job}
The service {job} ends when the tasks that decide have ended or one has failed, with the job's exit code; then Compose
stops the rest. A task's container goes on until then.
The image needs the training program's own packages; the directory of the spec is mounted into it.
"""
_IMAGE = "${IMAGE:?set IMAGE to an image with Python and TensorFlow}"
_KEPT_BY_SH = re.compile(r"(?!OPTIND$)[A-Za-z_][A-Za-z0-9_]*")
"""Variable names that a shell such as dash passes on unchanged; it evaluates OPTIND when it starts."""
_BOARD = {"ports": [f"127.0.0.1:{tensorboard.USUAL_PORT}:{tensorboard.USUAL_PORT}"]}  # on this machine only
_VOLUME = "tflaunch-job"
_MEETING = "/tflaunch/job"
"""Where tasks record their exit codes: in memory, so that nothing of an earlier run remains."""
_TASK = f"""\
trap 'tflaunch_stops=1; [ -z "$tflaunch_task" ] || kill -TERM "$tflaunch_task"' TERM INT
"$@" &
tflaunch_task=$!
[ -z "$tflaunch_stops" ] || kill -TERM "$tflaunch_task"
while wait "$tflaunch_task"; tflaunch_code=$?; kill -0 "$tflaunch_task" 2>/dev/null; do :; done
if [ "$tflaunch_code" -gt 128 ]; then
  wait "$tflaunch_task"; tflaunch_last=$?
  [ "$tflaunch_last" = 127 ] || tflaunch_code=$tflaunch_last
fi
trap tflaunch_stops=1 TERM INT
echo "$0 $tflaunch_code" >> {_MEETING}/ended
while [ -z "$tflaunch_stops" ]; do sleep 0.5 & wait "$!"; done
exit "$tflaunch_code"
"""
"""Runs a task, then idles: with `--exit-code-from` the first container that exits makes Compose stop all.

A signal interrupts `wait`, which returns 128 + its number; the shell may have seen the task's end in the same moment,
and returns its code to the next `wait`, or 127 if it keeps none.
"""
_JOB = f"""\
trap is_last=1 TERM INT
: >> {_MEETING}/ended
while :; do
  left=$0
  while read -r task code; do
    case "$code $1" in
      0*) case $2 in *" $task "*) left=$((left - 1)) ;; esac ;;
      *" $task "*) ;;
      *) echo "$task failed with $code" >&2; exit "$code" ;;
    esac
  done < {_MEETING}/ended
  [ "$left" -gt 0 ] || exit 0
  [ -z "$is_last" ] || exit 143
  sleep 0.5 & wait "$!"
done
"""
"""Waits for the deciding tasks: $0 is their number, $1 names those that may fail, $2 the deciding ones."""


def render(plan: Plan, directory: str, spec: Spec) -> str:
    """Return the text of a compose file, for Compose v2 and docker-compose 1.29.

    Tasks on one host share its network: its first task's service owns the name, the others join it.

    The plan has fixed ports, and ``directory``, that of the spec, is mounted at the same path. Without an image in the
    spec, the variable IMAGE names one.
    """
    stop_signal = {} if plan.stop_signal == "TERM" else {"stop_signal": f"SIG{plan.stop_signal}"}
    why = ":?a secret of the spec is read from it"  # in the environment of whoever starts Compose
    secrets = {name: f"${{{source.env}{why}}}" for name, source in plan.secrets.items()}
    owners: dict[str, str] = {}
    services: dict[str, Any] = {}
    gpus = itertools.count()  # all containers run on one machine, whatever hosts the spec names
    for process in plan.processes():
        owner = owners.setdefault(process.host, _service(process.task))
        mounted = [f"{_escaped(directory)}:{_escaped(directory)}", f"{_VOLUME}:{_MEETING}"]
        mounted += [f"{_escaped(source)}:{_escaped(path)}" for path, source in spec.container.volumes.items()]
        services[_service(process.task)] = {
            "image": spec.container.image or _IMAGE,
            "init": True,
            "command": [_escaped(word) for word in ("sh", "-c", _TASK, _service(process.task), *_command(process))],
            "working_dir": _escaped(process.workdir),
            "environment": {**_environment(process), **secrets},
            "volumes": mounted,
            **({} if process.role == SIDECAR else stop_signal),
            "stop_grace_period": f"{plan.timeouts.grace:g}s",
            **_resources(spec.resources(process.role), list(itertools.islice(gpus, len(devices(process) or ())))),
            **(_BOARD if tensorboard.is_board(process) else _network(process, owner)),
        }
    job = next(name for name in ("job", *map("job-{}".format, range(len(services)))) if name not in services)
    services[job] = _waiter(plan, spec)
    head = _HEAD.format(name=plan.name, variable="" if spec.container.image else "IMAGE=… ", job=job)
    named = [source for source in spec.container.volumes.values() if not source.startswith("/")]
    in_memory = {"driver_opts": {"type": "tmpfs", "device": "tmpfs", "o": "mode=1777"}}
    return yaml_text.written(
        head, {"services": services, "volumes": {**{name: {} for name in named}, _VOLUME: in_memory}}
    )


def _waiter(plan: Plan, spec: Spec) -> dict[str, Any]:
    deciding = policy.success_tasks(plan)
    optional = [each.task for each in plan.processes() if not (policy.in_gang(each) or each.required)]
    words = (str(len(deciding)), *(f" {' '.join(_service(task) for task in tasks)} " for tasks in (optional, deciding)))
    return {
        "image": spec.container.image or _IMAGE,
        "init": True,
        "command": [_escaped(word) for word in ("sh", "-c", _JOB, *words)],
        "volumes": [f"{_VOLUME}:{_MEETING}"],
    }


def _resources(resources: Resources, gpus: list[int]) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    if resources.cpu is not None:
        fields["cpus"] = float(resources.cpu)
    if resources.memory is not None:
        fields["mem_limit"] = resources.memory[:-1].lower()
    if gpus:
        device = {"driver": "nvidia", "device_ids": list(map(str, gpus)), "capabilities": ["gpu"]}
        fields["deploy"] = {"resources": {"reservations": {"devices": [device]}}}
    return fields


def _service(task: str) -> str:
    """Return the service of a task: ``worker-1`` for ``worker:1``."""
    return task.replace(":", "-")


def _network(process: TaskPlan, owner: str) -> Mapping[str, Any]:
    if _service(process.task) != owner:
        return {"network_mode": f"service:{owner}"}
    name = process.host if process.address is None else process.address.host
    is_named = name != "localhost" and not is_ip_address(name) and process.role != SIDECAR
    return {"networks": {"default": {"aliases": [name]}}} if is_named else {}


def _command(process: TaskPlan) -> Sequence[str]:
    """Return a command that sets the variables which its shell would drop."""
    odd = [f"{name}={value}" for name, value in process.env.items() if not _KEPT_BY_SH.fullmatch(name)]
    return ("env", "--", *odd, *program(process.argv)) if odd else process.argv


def _environment(process: TaskPlan) -> dict[str, str | None]:
    # gRPC takes an empty proxy for none; a variable without a value would come from the user's shell.
    unset = dict.fromkeys(process.unset, "")
    env = without_devices(process).env if devices(process) else process.env
    return {**unset, **{name: _escaped(value) for name, value in env.items() if _KEPT_BY_SH.fullmatch(name)}}


def _escaped(text: str) -> str:
    """Escape dollar signs that Compose would take for a variable reference."""
    return text.replace("$", "$$")
