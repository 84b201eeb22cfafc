"""Warn of commands, and of programs, that will not work with their spec."""

import json
import os
import re
import shlex
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from tflaunch.clusterspec.model import Role, Spec
from tflaunch.clusterspec.values import ROLES
from tflaunch.discovery import local_machine
from tflaunch.errors import TRAINS_ALONE, Problem
from tflaunch.features.programs import program_reader
from tflaunch.features.programs.program_reader import MIRRORED, MULTI_WORKER, PARAMETER_SERVER, Program, Use
from tflaunch.features.programs.program_text import ALWAYS, BY_ROLE, SETS
from tflaunch.plan.task_rules import all_commands

_ON_PURPOSE = 'set "strategy": "none" if they are to (with `run`: --set strategy=none)'
_PLACEHOLDER = re.compile(r"\{(task|cluster|chief)\.")

_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=")
_OPERATOR = re.compile(r"[0-9]?(>>?|<)(&[0-9])?|[0-9&]?>>?[^<>=&]+|\|\|?|&&?|;")
_EXPANSION = re.compile(r"\$([A-Za-z_]|\{[A-Za-z_][A-Za-z0-9_]*\}|\()|`.+`|~(/.*)?$")
_PATTERN = re.compile(r"(?=\S*[*?])(?=\S*[./])[^-\s]\S*")
_BUILTINS = ("source", ".", "cd", "export", "ulimit", "exec", "eval", "set", "unset", "pushd", "shopt", "umask")
_PYTHON = re.compile(r"(.*/)?python[\d.]*")
_NOTEBOOK = ".ipynb"
_LONGEST = 100  # characters of a command that is proposed


class Running(NamedTuple):
    """A program of a spec, the roles that run it, and the first one's Python."""

    spec: Spec
    directory: Path
    program: Program
    roles: Sequence[str]
    python: str

    def warn(self, use: Use, message: str, hint: str, kind: str = "") -> Problem:
        """Return a warning about a place in the program."""
        return Problem("warning", use.place(self.directory), message, hint, kind)

    def trainers(self) -> int:
        """Return the number of tasks that run it and train."""
        return sum(len(self.spec.cluster[role]) for role in ("chief", "worker") if role in self.roles)

    def is_told_in_words(self) -> bool:
        """Return whether placeholders give it the cluster, for its own TF_CONFIG."""
        settings = [self.spec.roles[role] for role in self.roles if role in self.spec.roles]
        commands = [self.spec.command or (), *(each.command or () for each in settings)]
        words = [word for each in commands for word in each]
        words += [*self.spec.env.values(), *(value for each in settings for value in each.env.values())]
        words += [value for each in self.spec.hosts.values() for value in each.env.values()]
        return any(_PLACEHOLDER.search(word) for word in words)


def find_problems(spec: Spec, directory: Path) -> list[Problem]:
    """Return the mistakes in a spec's commands, and in its programs that are here."""
    found = [*check_commands(spec)]
    if spec.effective_strategy() not in ("multi_worker_mirrored", "parameter_server"):
        return found
    for running in _programs(spec, directory):
        # A program that ignores the cluster of the spec has no other problem with it.
        found += list(_own_tf_config(running)) or [each for rule in RULES for each in rule(running)]
    return found


def _programs(spec: Spec, directory: Path) -> Iterator[Running]:
    roles: dict[tuple[Path, Path, str], list[str]] = {}
    for role, addresses in spec.cluster.items():
        settings = spec.roles.get(role) or Role()
        command = settings.command or spec.command
        if role not in ROLES or settings.server or not command or not addresses:
            continue
        workdir = settings.workdir or spec.host(addresses[0].host).workdir or spec.workdir or "."
        if found := program_reader.find_file(command, directory / os.path.expanduser(workdir)):
            roles.setdefault((*found, spec.host(addresses[0].host).python or command[0]), []).append(role)
    for (file, root, python), running in roles.items():
        yield Running(spec, directory, program_reader.read_program(file, root), running, python)


def _servers_without_ps(running: Running) -> Iterator[Problem]:
    use = running.program.only_strategy(BY_ROLE)
    is_needed = use and use.name == PARAMETER_SERVER and running.program.reads_tf_config and running.trainers()
    if use and is_needed and "ps" not in running.spec.cluster:
        message = f"{use.name} needs a ps, and the cluster has none: TensorFlow refuses it"
        yield running.warn(use, message, 'add for example "chief": 1 and "ps": 1 to the cluster')


def _no_servers(running: Running) -> Iterator[Problem]:
    """Warn of worker and ps that run the chief's program, without a server."""
    program, alike = running.program, [role for role in ("worker", "ps") if role in running.roles]
    is_chiefs = "chief" in running.roles and running.spec.effective_strategy() == "parameter_server"
    made = program.only_strategy()
    use = made if made and made.name == PARAMETER_SERVER else program.coordinator
    is_certain = program.is_complete and not program.others and use and (use is made or use.certainty >= BY_ROLE)
    if alike and is_chiefs and use and is_certain and not program.has_server:
        run = "run" if len(alike) > 1 else "runs"
        message = f"{' and '.join(alike)} {run} this program, which starts no server: the chief would wait"
        roles = json.dumps({role: {"server": True} for role in alike})
        options = " ".join(f"--set roles.{role}.server=true" for role in alike)
        hint = f'add "roles": {roles} to the spec, or a tf.distribute.Server to the program; with `run`: {options}'
        yield running.warn(use, message, hint)


def _mirrored_alone(running: Running) -> Iterator[Problem]:
    use, count = running.program.only_strategy(ALWAYS), running.trainers()
    if use and use.name in (MIRRORED, "CentralStorageStrategy") and count > 1:
        message = f"{use.name} has the devices of one process: each of {count} tasks trains a model of its own"
        yield running.warn(use, message, f"make a {MULTI_WORKER}, or {_ON_PURPOSE}", TRAINS_ALONE)


def _no_strategy(running: Running) -> Iterator[Problem]:
    use, count = running.program.alone, running.trainers()
    backend = running.spec.env.get("KERAS_BACKEND", os.environ.get("KERAS_BACKEND", "tensorflow"))
    if use and count > 1 and backend == "tensorflow" and not running.is_told_in_words():
        name = PARAMETER_SERVER if running.spec.effective_strategy() == "parameter_server" else MULTI_WORKER
        message = f"trains without a strategy of tf.distribute, so each of {count} tasks trains a model of its own"
        hint = f"make the model in the scope of a tf.distribute.{name}, or {_ON_PURPOSE}"
        yield running.warn(use, message, hint, TRAINS_ALONE)


def _mirrored_with_servers(running: Running) -> Iterator[Problem]:
    use = running.program.only_strategy(ALWAYS)
    if use and use.name == MULTI_WORKER and {"ps", "worker"} <= set(running.roles):
        message = f"{use.name} would wait for a service on ps:0 that is never started"
        yield running.warn(use, message, "remove ps from the cluster")


def _own_tf_config(running: Running) -> Iterator[Problem]:
    use = running.program.tf_config
    if use is None or running.trainers() < 2 or running.program.others or running.is_told_in_words():
        return
    if use.name == SETS:
        message = "sets TF_CONFIG, so this task's place in the cluster, which tflaunch has put there, is lost"
        remedy = "remove it, or set it only if TF_CONFIG is not in os.environ"
        yield running.warn(use, message, remedy, TRAINS_ALONE)
    elif (made := running.program.only_strategy(ALWAYS)) and made.name == MULTI_WORKER:
        message = "removes TF_CONFIG, without which each task trains alone"
        yield running.warn(use, message, "remove this line", TRAINS_ALONE)


def _uneven_batch(running: Running) -> Iterator[Problem]:
    made, count = running.program.only_strategy(ALWAYS), running.trainers()
    if made is None or made.name != MULTI_WORKER or running.spec.effective_strategy() != "multi_worker_mirrored":
        return
    uneven = [use for use in running.program.batches if count and use.value % count]
    if uneven:
        message = f"a global batch of {uneven[0].value} does not divide by {count} workers, so their shares differ"
        yield running.warn(uneven[0], message, "make it a multiple of strategy.num_replicas_in_sync")


def _keras_3(running: Running) -> Iterator[Problem]:
    program, made = running.program, running.program.only_strategy(BY_ROLE)
    is_trained = program.keras and any(use.certainty >= BY_ROLE for use in program.fits)
    if not is_trained or made is None or (made.name == MULTI_WORKER and running.trainers() < 2):
        return
    hosts = {address.host for role in running.roles for address in running.spec.cluster[role]}
    is_here = all(map(local_machine.is_this_machine, hosts))
    if made.name in (MULTI_WORKER, PARAMETER_SERVER) and is_here and _is_keras_3(running.python):
        assert program.keras is not None
        message = f"`import keras` is Keras 3, which cannot `fit` under {made.name}"
        yield running.warn(program.keras, message, "use tf.keras, or `import tf_keras as keras`")


def _is_keras_3(python: str) -> bool:
    """Return whether Keras 3 alone is installed for a Python or for tflaunch."""
    found = shutil.which(os.path.expanduser(python))
    prefixes = {Path(sys.prefix), *([Path(found).parent.parent] if found else [])}
    places = [place for prefix in prefixes for place in prefix.glob("lib/python3*/site-packages/keras-*.dist-info")]
    return bool(places) and all(place.name.startswith("keras-3.") for place in places)


RULES: tuple[Callable[[Running], Iterator[Problem]], ...] = (
    _servers_without_ps,
    _no_servers,
    _mirrored_alone,
    _no_strategy,
    _mirrored_with_servers,
    _uneven_batch,
    _keras_3,
)


def check_commands(spec: Spec) -> Iterator[Problem]:
    """Check commands for shell syntax, which reaches a program literally."""
    return filter(None, (_check_command(where, command) for where, command in all_commands(spec)))


def _check_command(where: str, command: Sequence[str]) -> Problem | None:
    program = command[0]
    if len(command) == 1 and re.match(r"[^\s/]+\s+\S", program):
        message = f"{program!r} is one word, so it is the name of a program"
        return Problem.error(where, message, f"write {json.dumps(program.split(), ensure_ascii=False)}")
    script = command[1] if len(command) > 1 and _PYTHON.fullmatch(program) else program
    if script.endswith(_NOTEBOOK):
        made = script.removesuffix(_NOTEBOOK) + ".py"
        remedy = f"`jupyter nbconvert --to script {shlex.quote(script)}` writes {made!r}: run that"
        return Problem.error(where, f"{script!r} is a notebook, which Python cannot run", remedy)
    if command[-1] == "&" or re.fullmatch(r"[^&]+&", command[-1]):
        message = "'&' is shell syntax for a program in the background, and a task ends with its first process"
        return Problem.warning(where, message, "leave out '&', and nohup with it")
    found = next((word for word, _ in _for_a_shell(command)), None)
    if found is None:
        return None
    message = f"{found!r} is shell syntax, but no shell runs: the program gets it literally"
    if found in _BUILTINS:
        message = f"{found!r} is a command of shells, but no shell runs"
    return Problem.warning(where, message, f"to run it in a shell, {_through_a_shell(command)}")


def _for_a_shell(command: Sequence[str]) -> Iterator[tuple[str, int]]:
    """Yield shell words and their indices; a script after `-c` is for another shell."""
    for index, word in enumerate(command):
        before = command[index - 1] if index else ""
        if before == "-c":
            continue
        is_program = not index and (_ASSIGNMENT.match(word) or word in _BUILTINS)
        is_pattern = index and not before.startswith("-") and "://" not in word and _PATTERN.fullmatch(word)
        is_end = index < len(command) - 1 and re.fullmatch(r"[^;]+;", word)
        is_syntax = index and (_OPERATOR.fullmatch(word) or _EXPANSION.search(word))
        if is_program or is_pattern or is_end or is_syntax:
            yield word, index


def _through_a_shell(command: Sequence[str]) -> str:
    """Return the remedy by which a shell runs a command and fails with it."""
    plain = {index for _, index in _for_a_shell(command)}
    script = " ".join(word if index in plain else shlex.quote(word) for index, word in enumerate(command))
    shell = ["bash" if {"|", "source"} & {*command} else "sh"]
    if "|" in command:  # else the exit code would be that of the last program
        shell += ["-o", "pipefail"]
    if any(word.endswith(";") for word, _ in _for_a_shell(command)):
        shell.append("-e")
    text = json.dumps([*shell, "-c", script], ensure_ascii=False)
    return f"write {text}" if len(text) <= _LONGEST else "put it into a script, and run that"
