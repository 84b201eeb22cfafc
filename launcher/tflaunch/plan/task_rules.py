"""Rules for the commands, variables and placeholders of a spec."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tflaunch.clusterspec import templates
from tflaunch.clusterspec.model import Spec
from tflaunch.clusterspec.values import ROLES, nearest_name
from tflaunch.errors import Problem
from tflaunch.plan import placeholders
from tflaunch.plan.task_env import OURS

_KERAS_SPELLINGS = ("1", "true", "True")  # the values that tensorflow/__init__.py compares with


def _commands(spec: Spec) -> Iterator[Problem]:
    for role in spec.cluster:
        settings = spec.roles.get(role)
        has_own = settings is not None and (settings.command is not None or settings.server)
        if spec.command is None and not has_own and role in ROLES:
            hint = 'add "command": ["python", "train.py"], or give it after --'
            yield Problem.error("command", f"{role} has nothing to run", hint)


def _settings_of_roles(spec: Spec) -> Iterator[Problem]:
    for role, settings in spec.roles.items():
        if role not in spec.cluster:
            yield Problem.error(
                f"roles.{role}", f"the cluster has no role {role!r}", "remove it, or add it to the cluster"
            )
        if settings.server and (role not in ("worker", "ps") or spec.effective_strategy() != "parameter_server"):
            message = "only worker and ps of a parameter_server job can run TensorFlow's standard server"
            yield Problem.error(f"roles.{role}.server", message, "remove it")
        if settings.server and settings.command is not None:
            yield Problem.error(f"roles.{role}", "has both a command and server: true", "keep one of them")


def _legacy_keras(spec: Spec) -> Iterator[Problem]:
    """Check legacy_keras: Keras 3 raises in `fit` under strategies with workers."""
    strategy = spec.effective_strategy()
    if spec.legacy_keras is False and strategy in ("multi_worker_mirrored", "parameter_server"):
        message = f"Keras 3 cannot `fit` under {strategy}"
        yield Problem.warning("legacy_keras", message, "remove it, unless the program has its own training loop")
    for where, env in _values_of(spec, "env"):
        value = env.get("TF_USE_LEGACY_KERAS", "1")
        if value not in (*_KERAS_SPELLINGS, "0", "false", "False", ""):
            message = f"TensorFlow ignores TF_USE_LEGACY_KERAS={value}"
            yield Problem.error(f"{where}.TF_USE_LEGACY_KERAS", message, 'write "1"')


def _secrets(spec: Spec) -> Iterator[Problem]:
    """Check that each secret has one place, and that nothing else sets its variable."""
    for name, secret in spec.secrets.items():
        if (secret.env is None) == (secret.file is None):
            message = 'must have one of "env" and "file"'
            hint = "write where the value is found" if secret.env is None else "remove one of them"
            yield Problem.error(f"secrets.{name}", message, hint)
        for where, env in _values_of(spec, "env"):
            if name in env:
                yield Problem.error(f"{where}.{name}", f"is a secret, too (secrets.{name})", "leave out one of them")


def _own_variables(spec: Spec) -> Iterator[Problem]:
    for where, env in (*_values_of(spec, "env"), ("secrets", spec.secrets)):
        for variable in OURS:
            if variable in env:
                yield Problem.error(f"{where}.{variable}", "is set by tflaunch for every task", "remove it")


def _placeholders(spec: Spec) -> Iterator[Problem]:
    """Check placeholders: an unknown one would reach the program literally."""
    has_leader = not {"chief", "worker"}.isdisjoint([*spec.cluster, *spec.discover])
    for where, name in ((where, name) for where, text in texts_of(spec) for name in placeholders.names(text)):
        role = name.removeprefix(templates.CLUSTER)
        if name not in templates.NAMES and not name.startswith(templates.MATRIX):
            guess = nearest_name(name, list(templates.NAMES))
            hint = f"did you mean {{{guess}}}? Write {{{{{name}}}}} for literal braces"
            yield Problem.error(where, f"{{{name}}} is not a known placeholder", hint)
        elif role in ROLES and role not in spec.cluster and not spec.discover:
            yield Problem.error(where, f"{{cluster.{role}}} is empty: the cluster has no {role}", "remove it")
        elif name == templates.LEADER and not has_leader:
            yield Problem.error(where, "{chief.host} is empty: the cluster has neither chief nor worker", "remove it")


def all_commands(spec: Spec) -> Iterator[tuple[str, Sequence[str]]]:
    """Yield every command with its place in the spec."""
    yield from ((where, command) for where, command in _values_of(spec, "command") if command)


def texts_of(spec: Spec) -> Iterator[tuple[str, str]]:
    """Yield the place and text of every value that may contain placeholders."""
    for where, command in all_commands(spec):
        yield from ((f"{where}[{index}]", word) for index, word in enumerate(command))
    for where, env in _values_of(spec, "env"):
        yield from ((f"{where}.{name}", value) for name, value in env.items())
    yield from ((where, text) for where, text in _values_of(spec, "workdir") if text is not None)


def _threads(spec: Spec) -> Iterator[Problem]:
    """Check for a single inter-op thread, in which servers of tf.distribute block."""
    for where, env in _values_of(spec, "env"):
        if env.get("TF_NUM_INTEROP_THREADS") == "1" and "ps" in spec.cluster:
            message = "one inter-op thread can lock up worker and ps"
            yield Problem.warning(f"{where}.TF_NUM_INTEROP_THREADS", message, "leave it out")


def _values_of(spec: Spec, field: str) -> Iterator[tuple[str, Any]]:
    """Yield a field's place and value in the spec, its roles, hosts and sidecars."""
    yield field, getattr(spec, field)
    for parts in ("roles", "hosts", "sidecars"):
        for name, part in getattr(spec, parts).items():
            yield f"{parts}.{name}.{field}", getattr(part, field, None)


RULES: tuple[Callable[[Spec], Iterator[Problem]], ...] = (
    _commands,
    _settings_of_roles,
    _legacy_keras,
    _secrets,
    _own_variables,
    _placeholders,
    _threads,
)
