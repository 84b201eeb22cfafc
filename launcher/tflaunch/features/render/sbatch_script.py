"""Render a plan as an sbatch script with one job step per task.

The script ends with the exit code of the job. It needs setsid, and env of coreutils 8.28.
"""

import itertools
import math
import re
import shlex
from collections import Counter
from collections.abc import Iterator, Sequence

from tflaunch.clusterspec.model import Spec
from tflaunch.core import policy
from tflaunch.errors import Problem
from tflaunch.features.render import slurm
from tflaunch.features.render.target_plan import devices, program, without_devices
from tflaunch.features.secret_names import secret_in_shell
from tflaunch.plan.model import Plan, TaskPlan

_HEAD = """\
Made by `tflaunch render --to slurm`: sbatch FILE
Exit code: 0, or that of the first task of {name} that failed. No task is started again.
"""
_NODES = """\
mapfile -t nodes < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
step=({step})
first_port=$(({lowest} + SLURM_JOB_ID % {slots} * {slot}))  # jobs that share a node use different ports
"""
_SETTINGS = """\
declare -A deciding=({deciding})  # the job is done when these have ended with 0
declare -A optional=({optional})  # these may fail
"""

_FRAME = """\
declare -A session=()  # task to the session that it runs in
unset TMOUT  # it would end every read below

news=$(mktemp -d) && mkfifo "$news/pipe" && exec 3<>"$news/pipe" && rm -r "$news" || exit 125

start() {  # TASK COMMAND...: in its own session; its start and end are reported through the pipe
  session[$1]=
  {
    setsid "${@:2}" </dev/null 3>&- &
    echo "$1 runs $!" >&3
    wait $!
    echo "$1 ended $?" >&3
  } &
}

tell() {  # SIGNAL TASK: to its whole session; it may not have one yet
  kill "-$1" -- "-${session[$2]}" 2>/dev/null || kill "-$1" "${session[$2]}" 2>/dev/null
}

end() {  # CODE SECONDS: TERM to all, KILL after SECONDS
  trap '' HUP INT TERM
  local late=$((SECONDS + $2)) task what number
  for task in "${!session[@]}"; do tell TERM "$task"; done
  while ((${#session[@]} && late > SECONDS)) && read -r -t $((late - SECONDS)) task what number <&3; do
    if [[ $what == runs ]]; then
      session[$task]=$number
      tell TERM "$task"
    elif [[ $what == ended ]]; then
      tell KILL "$task"
      unset "session[$task]"
    fi
  done
  for task in "${!session[@]}"; do tell KILL "$task"; done
  wait
  exit "$1"
}
"""

# A trap that ended the script itself would interrupt `read` in the middle of a report, and lose a session.
_TRAPS = """\
trap 'echo "- signal 129" >&3' HUP
trap 'echo "- signal 130" >&3' INT
trap 'echo "- signal 143" >&3' TERM
"""

_WAIT = """\
while read -r task what number <&3; do
  if [[ $what == runs ]]; then
    session[$task]=$number
    continue
  elif [[ $what == signal ]]; then
    end "$number" {grace}
  fi
  tell KILL "$task"  # what it has left behind
  unset "session[$task]"
  if ((number == 0)); then
    unset "deciding[$task]"
    ((${{#deciding[@]}})) || end 0 {grace}
  elif [[ -v optional[$task] ]]; then
    echo "$task ended with $number" >&2
  else
    echo "$task failed with $number" >&2
    end "$number" {survivor_grace}
  fi
done
"""

_TASK_OF_CONFIG = ',"task":'
FIRST_PORT = 100_000
"""Placeholder for the first port that the job chooses: higher than any valid port."""

_LOWEST_PORT, _BEHIND_PORTS = 10_000, 32_768  # where Linux's range for outgoing connections begins
_PORTS_OF_JOB = 64  # minimum: jobs with equal port counts and consecutive IDs never collide
_NODE = "<node {} of the job>"
_STEP = 3  # length of a group in `split`'s result: the text between two nodes, and the pattern's two groups
_NODES_IN_TEXT = re.compile(r"<node (\d+) of the job>(?::(1\d{5})(?!\d))?")
"""Placeholder for a node name and an optional port: not written by users, unchanged by JSON, quoted by shells."""


def one_part(spec: Spec) -> Iterator[Problem]:
    """Reject roles with different resources: a script has one kind of node."""
    for roles in slurm.parts_of(spec)[1:]:
        message = "differs from that of other roles, and the script asks for nodes that are alike"
        yield Problem("error", f"roles.{roles[0]}.resources", message, "use `tflaunch up --on slurm`, or remove it")


def without_lives(spec: Spec) -> Iterator[Problem]:
    """Reject a run that goes on after its time limit: a script has no supervisor."""
    if spec.slurm.get(slurm.REQUEUE) == slurm.AT_LIMIT:
        message = "is what the supervisor of `tflaunch up --on slurm` does, and the script has none"
        yield Problem.error(f"slurm.{slurm.REQUEUE}", message, "remove it, or use `tflaunch up --on slurm`")


def without_image(spec: Spec) -> Iterator[Problem]:
    """Reject an image: the script cannot tell what runs it there, pyxis or Apptainer."""
    if spec.container.image is not None:
        message = "is what `tflaunch up --on slurm` starts tasks in, and the script starts them on the nodes themselves"
        yield Problem.error("container.image", message, "use that, or leave it out here")


def placed(spec: Spec) -> Spec:
    """Return the spec on the first, second, … node of the allocation."""
    return slurm.onto(spec, [_NODE.format(number) for number in range(slurm.nodes_wanted(spec))])


def render(plan: Plan, directory: str, spec: Spec) -> str:
    """Return an sbatch script that starts a `placed` spec's tasks in the plan's order.

    ``directory`` is unused: that of the plan applies on the nodes, too.
    """
    processes = plan.processes()
    step = ["srun", "--overlap", "--nodes=1", "--ntasks=1"]  # the steps of a node share its allocation
    if (cpu := spec.resources(processes[0].role).cpu) is not None:
        step.append(f"--cpus-per-task={slurm.cores(cpu)}")
    slot = max(_PORTS_OF_JOB, _ports(plan))
    slots = (_BEHIND_PORTS - _LOWEST_PORT) // slot
    times = {"grace": _seconds(plan.timeouts.grace), "survivor_grace": _seconds(policy.survivor_grace(plan))}
    optional = [process.task for process in processes if not (policy.in_gang(process) or process.required)]
    options = slurm.as_options(slurm.wanted_of_job(plan._replace(elastic=None), spec, processes))
    cluster = _cluster(plan)
    return "\n".join(
        [
            "#!/bin/bash",
            *(f"#SBATCH {option}" for option in options),
            *(f"# {line}" for line in _HEAD.format(name=plan.name).splitlines()),
            "",
            _NODES.format(step=" ".join(step), lowest=_LOWEST_PORT, slots=slots, slot=slot),
            _SETTINGS.format(deciding=_array(policy.success_tasks(plan)), optional=_array(optional)) + _FRAME,
            _TRAPS,
            *(f"{name}={secret_in_shell(source)} && export {name} || exit 2" for name, source in plan.secrets.items()),
            f"cluster={_quote(cluster)}",
            *(_start(process, cluster) for process in processes),
            "",
            _WAIT.format(**times),
        ]
    )


def _ports(plan: Plan) -> int:
    chosen = [task.address.port for task in plan.tasks if task.address is not None and task.address.port is not None]
    return max(chosen, default=0) - FIRST_PORT + 1


def _array(tasks: Sequence[str]) -> str:
    return " ".join(f"[{task}]=1" for task in tasks)


def _seconds(grace: float) -> int:
    """Round up to whole seconds; with 0, bash would miss which task has ended."""
    return max(1, math.ceil(grace))


def _cluster(plan: Plan) -> str:
    """Return the part of TF_CONFIG that most tasks share: all addresses."""
    configs = [task.env["TF_CONFIG"] for task in plan.tasks if "TF_CONFIG" in task.env]
    before = [config.rpartition(_TASK_OF_CONFIG)[0] for config in configs]
    return Counter(before).most_common(1)[0][0] if before else ""


def _start(process: TaskPlan, cluster: str) -> str:
    """Return the line that starts a process.

    Variables reach it only through `env`, except secrets, which must not appear on its command line. As shell
    variables, some would change the script itself (TMOUT ends a `read`, PATH selects another `setsid`), some would be
    changed or evaluated by bash (EPOCHREALTIME, OPTIND), and some are not valid names (`a-b`).
    """
    if devices(process):
        process = without_devices(process)  # srun shows each step the job's; a task without GPUs still hides them
    unset = [word for name in process.unset for word in ("-u", name)]
    env = ["env", "--chdir", process.workdir, *unset, "--"]  # after `--`, a variable named -u is not an option
    start = f'start {_quote(process.task)} "${{step[@]}}" --nodelist="{_expanded(process.host)}"'
    lines = [" ".join([start, *map(_quote, env)])]
    for name, value in process.env.items():
        if name == "TF_CONFIG" and cluster and value.startswith(cluster):
            lines.append(f'{name}="$cluster"{_quote(value[len(cluster) :])}')
        else:
            lines.append(_quote(f"{name}={value}"))
    return " \\\n  ".join([*lines, " ".join(map(_quote, program(process.argv)))])


def _quote(text: str) -> str:
    """Quote text, except for node names and ports, which the shell expands."""
    literals = _NODES_IN_TEXT.split(text)[::_STEP]
    variables = [f'"{_expanded(found[0])}"' for found in _NODES_IN_TEXT.finditer(text)]
    words = [_quoted(literal) if literal else "" for literal in literals]
    return "".join(itertools.chain(*itertools.zip_longest(words, variables, fillvalue=""))) or "''"


def _quoted(text: str) -> str:
    """Return text as one bash word, with escapes for invisible characters."""
    if text.replace("\n", "").isprintable():
        return shlex.quote(text)
    return f"$'{''.join(map(_escaped, text))}'"


def _escaped(sign: str) -> str:
    if sign in "\\'":
        return f"\\{sign}"
    if sign.isprintable():
        return sign
    return "".join(f"\\x{byte:02x}" for byte in sign.encode("utf-8", "surrogateescape"))


def _expanded(text: str) -> str:
    return _NODES_IN_TEXT.sub(_variables, text)


def _variables(found: re.Match[str]) -> str:
    port = f":$((first_port + {int(found[2]) - FIRST_PORT}))" if found[2] else ""
    return f"${{nodes[{found[1]}]}}{port}"
