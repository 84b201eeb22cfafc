"""Write a plan as a bash script that starts its tasks, and stops all of them when one fails. Pure."""

from __future__ import annotations

import math
import shlex
from collections import Counter
from collections.abc import Callable, Sequence

from tflaunch.core import policy
from tflaunch.features.render.target_plan import program
from tflaunch.plan.model import Plan, TaskPlan
from tflaunch.plan.serialize import secret_in_shell

_TASK_OF_CONFIG = ',"task":'
_WIDTH = 100

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

Quote = Callable[[str], str]


def script(plan: Plan, head: str, starter: Callable[[TaskPlan], Sequence[str]], quote: Quote) -> str:
    """Return a script that exits with the exit code of the job; it needs setsid, and env of coreutils 8.28.

    Args:
        plan: with fixed ports; its tasks start in the order of the plan.
        head: the beginning of the script.
        starter: returns the shell-quoted argv prefix for the command of a task.
        quote: quotes any text as one shell word.
    """
    processes = plan.processes()
    times = {"grace": _seconds(plan.timeouts.grace), "survivor_grace": _seconds(policy.survivor_grace(plan))}
    optional = [process.task for process in processes if not (policy.in_gang(process) or process.required)]
    settings = _SETTINGS.format(deciding=_array(policy.success_tasks(plan)), optional=_array(optional))
    frame = settings + _FRAME + "\n" + _TRAPS.format(**times)
    common = _Common(plan, quote)
    started = [common.start(process, starter(process)) for process in processes]
    return "\n".join([head, frame, *common.lines(), "", *started, "", _WAIT.format(**times)])


def quoted(text: str) -> str:
    """Return text as one bash word; characters that a terminal or an editor would not show are escaped."""
    if text.replace("\n", "").isprintable():
        return shlex.quote(text)
    return f"$'{''.join(map(_escaped, text))}'"


def _escaped(sign: str) -> str:
    if sign in "\\'":
        return f"\\{sign}"
    if sign.isprintable():
        return sign
    return "".join(f"\\x{byte:02x}" for byte in sign.encode("utf-8", "surrogateescape"))


def comment(text: str) -> str:
    """Return lines of text as comments."""
    return "".join(f"# {line}\n" for line in text.splitlines())


def _array(tasks: Sequence[str]) -> str:
    return " ".join(f"[{task}]=1" for task in tasks)


def _seconds(grace: float) -> int:
    """Round up to whole seconds for bash; at least 1, or it would not notice which task has ended."""
    return max(1, math.ceil(grace))


class _Common:
    """Writes what all processes of a plan have in common once; the rest is written where each is started.

    Variables reach a task only through `env`, except secrets, which must not appear on its command line. As shell
    variables, some would change the script itself (TMOUT ends a `read`, PATH selects another `setsid`), some would be
    changed or evaluated by bash (EPOCHREALTIME, OPTIND), and some are not valid names (`a-b`).
    """

    def __init__(self, plan: Plan, quote: Quote) -> None:
        self._quote = quote
        processes = plan.processes()
        first = processes[0]
        self._env = {
            name: value
            for name, value in first.env.items()
            if all(process.env.get(name) == value for process in processes)
        }
        self._unset = [name for name in first.unset if all(name in process.unset for process in processes)]
        self._directory = Counter(process.workdir for process in processes).most_common(1)[0][0]
        self._cluster = _cluster(plan)
        self._secrets = sorted(plan.secrets.items())

    def lines(self) -> list[str]:
        """Return the lines that apply to all processes."""
        words = [word for name in self._unset for word in ("-u", self._quote(name))]
        variables = [self._assigned(name, value) for name, value in self._env.items()]
        cluster = [f"cluster={self._quote(self._cluster)}"] if self._cluster else []
        # After `--`, a variable named -u is not taken for an option.
        common = "\n  ".join(["common=(", " ".join([*words, "--"]), *variables])
        secrets = [f"{name}={secret_in_shell(source)} && export {name} || exit 2" for name, source in self._secrets]
        return [*secrets, *cluster, f"{common}\n)", f"cd -- {self._quote(self._directory)} || exit 2"]

    def start(self, process: TaskPlan, starter: Sequence[str]) -> str:
        """Return the line that starts a process."""
        own = [self._assigned(name, value) for name, value in process.env.items() if name not in self._env]
        env = ["--chdir", self._quote(process.workdir)] if process.workdir != self._directory else []
        env += [word for name in process.unset if name not in self._unset for word in ("-u", self._quote(name))]
        start = ["start", self._quote(process.task), *starter, "env", *env, '"${common[@]}"']
        return _wrapped([" ".join(start), *own, " ".join(map(self._quote, program(process.argv)))])

    def _assigned(self, name: str, value: str) -> str:
        if name == "TF_CONFIG" and self._cluster and _before_task(value) == self._cluster:
            return f'{name}="$cluster"{self._quote(value[len(self._cluster) :])}'
        return self._quote(f"{name}={value}")


def _cluster(plan: Plan) -> str:
    """Return what precedes the task in most TF_CONFIGs: the addresses of all tasks."""
    configs = [task.env["TF_CONFIG"] for task in plan.tasks if "TF_CONFIG" in task.env]
    return Counter(map(_before_task, configs)).most_common(1)[0][0] if len(configs) > 1 else ""


def _before_task(config: str) -> str:
    return config.rpartition(_TASK_OF_CONFIG)[0]


def _wrapped(parts: Sequence[str]) -> str:
    line = " ".join(parts)
    return line if len(line) <= _WIDTH else " \\\n  ".join(parts)
