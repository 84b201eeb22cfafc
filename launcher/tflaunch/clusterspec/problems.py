"""Translate pydantic's errors about a spec into sentences with place and remedy."""

import functools
import json
import types
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from tflaunch.clusterspec import model
from tflaunch.clusterspec.values import COUNT_FORM, InvalidValueError, Location, format_place, nearest_name, show_value
from tflaunch.errors import Problem

_OF_KEY = "[key]"
"""Last part of the location of an error in a key."""

_EXAMPLES: Mapping[Any, Mapping[str, object]] = {
    model.Checkpoints: {"dir": "state"},
    model.Container: {"image": "ghcr.io/ann/train:1"},
    model.Elastic: {"min_workers": 2},
    model.Host: {"ssh": "ann@10.0.0.1"},
    model.Kubernetes: {"namespace": "train"},
    model.PodTemplate: {"container": {"imagePullPolicy": "Always"}},
    model.Notify: {"exec": ["./notify.sh"]},
    model.Resources: {"cpu": "2"},
    model.Restart: {"max": 3},
    model.Retention: {"keep": 10},
    model.Role: {"command": ["python", "train.py"]},
    model.Secret: {"env": "API_KEY"},
    model.Sidecar: {"command": ["tensorboard", "--logdir", "logs"]},
    model.Spec: {"cluster": {"worker": 2}, "command": ["python", "train.py"]},
    model.Sync: {"paths": ["."]},
    model.Timeouts: {"deadline": "1h"},
}
"""What to write for each part of a spec."""

_ENV = 'write for example "env": {"A": "b"}'
_COMMAND = 'put the arguments into "command"'
_FOREIGN: Mapping[Any, Mapping[str, str]] = {
    model.Spec: {
        "workers worker num_workers replicas nproc nproc_per_node np ntasks num_processes":
            'write for example "cluster": {"worker": 2}',
        "hosts_file hostfile": 'write for example "hosts": {"discover": "file:hosts.txt"}',
        "nodes nnodes machines worker_hosts": 'write for example "cluster": {"worker": ["10.0.0.1", "10.0.0.2"]}',
        "ps parameter_servers num_ps ps_hosts": 'write for example "cluster": {"chief": 1, "worker": 2, "ps": 1}',
        "chief master": 'write for example "cluster": {"chief": 1, "worker": 2}',
        "evaluator": 'write for example "cluster": {"worker": 2, "evaluator": 1}',
        "gpus gpu num_gpus gpus_per_task gpus_per_worker": 'write for example "roles": {"worker": {"gpus": 1}}',
        "environment env_vars envs environ variables": _ENV,
        "env_file": "give it to `tflaunch run --env-file FILE`, or write \"env\"",
        "image containers": 'write for example "container": {"image": "ghcr.io/ann/train:1"}',
        "volumes mounts": 'write for example "container": {"volumes": {"/data": "claim"}}',
        "resources cpus cpu memory mem limits requests":
            'write for example "container": {"resources": {"cpu": "2", "memory": "4Gi"}}',
        "args arguments": _COMMAND,
        "program script entrypoint entry_point main exec cmd": 'write for example "command": ["python", "train.py"]',
        "working_dir cwd directory dir": 'write for example "workdir": "work"',
        "max_restarts retries backoff_limit restart_policy restartPolicy": 'write for example "restart": {"max": 3}',
        "timeout deadline time_limit time activeDeadlineSeconds": 'write for example "timeouts": {"deadline": "1h"}',
        "partition account qos nodelist": 'write for example "slurm": {"partition": "gpu"}',
        "namespace context": 'write for example "kubernetes": {"namespace": "train"}',
        "depends_on": "remove it: the tasks of a run start together",
        "task index rank TF_CONFIG": "remove it: tflaunch makes the task part of TF_CONFIG for every task",
    },
    model.Host: {"user port hostname host key username": 'write for example "ssh": "ann@10.0.0.1:2222"'},
    model.Role: {
        "replicas count workers num": 'write beside "roles": "cluster": {"worker": 2}',
        "args arguments": _COMMAND,
        "environment env_vars": _ENV,
        "working_dir cwd": 'write for example "workdir": "work"',
    },
    model.Resources: {
        "limits requests cpus cores": 'write for example "cpu": "2"',
        "gpus nvidia.com/gpu": 'write for example "gpu": 1',
        "mem ram": 'write for example "memory": "4Gi"',
    },
}  # fmt: skip

FOREIGN_FIELDS: Mapping[Any, Mapping[str, str]] = {
    part: {name: remedy for names, remedy in table.items() for name in names.split()}
    for part, table in _FOREIGN.items()
}
"""Part of a spec to fields of other tools that users often write into it, and the remedy for each."""


def validate_data(data: object) -> model.Spec | list[Problem]:
    """Return the spec in ``data``, as a parser returns it, or all its problems."""
    if whole := _manifest_in(data):
        return [whole]
    try:
        return model.Spec.model_validate(data)
    except ValidationError as error:
        return problems_in(error, data)


def problems_in(error: ValidationError, data: object) -> list[Problem]:
    """Return the problems of a spec made from ``data``."""
    problems = []
    for detail in error.errors(include_url=False):
        location = detail["loc"]
        there = functools.reduce(_inside, location[:-1], data)
        is_key = location[-1:] == (_OF_KEY,) and not (isinstance(there, dict) and _OF_KEY in there)
        declared = _declared_at(location[:-2] if is_key else location)
        if is_key:
            declared, location = _without_wrapping(get_args(declared)[0]), location[:-1]
        message, hint = _sentence(detail, location, declared)
        problems.append(Problem("error", format_place(location), message, hint))
    return problems


def _manifest_in(data: object) -> Problem | None:
    """Return the problem of a file for another tool, None if it may be a spec."""
    if not isinstance(data, dict):
        return None
    remedy = 'write for example {"cluster": {"worker": 2}, "command": ["python", "train.py"]}'
    if isinstance(data.get("kind"), str) and ("apiVersion" in data or "cluster" not in data):
        what = f"is a manifest of Kubernetes ({data['kind']}), not a spec"
        return Problem.error("", what, f"{remedy}, and start it with `tflaunch up --on kubernetes`")
    if "services" in data and "cluster" not in data:
        return Problem.error("", "is a file of docker compose, not a spec", remedy)
    return None


# --- sentences -------------------------------------------------------------------------------------


def _sentence(detail: ErrorDetails, location: Location, declared: Any) -> tuple[str, str]:
    """Return the message and the remedy for an error."""
    cause = detail.get("ctx", {}).get("error")
    if isinstance(cause, InvalidValueError):
        return cause.message, cause.hint
    sentence = _SENTENCES.get(detail["type"])
    if sentence is None:
        return f"cannot be used: {detail['msg']}", "correct it"
    return sentence(detail["input"], location, declared)


def _unknown_field(value: object, location: Location, declared: Any) -> tuple[str, str]:
    name, part = str(location[-1]), _declared_at(location[:-1])
    if foreign := FOREIGN_FIELDS.get(part, {}).get(name):
        hint = foreign
    elif guess := nearest_name(name, model.written_fields(part)):
        hint = f"did you mean {guess!r}?"
    else:
        hint = "the fields here are " + ", ".join(model.written_fields(part))
    return f"unknown field {show_value(name)}", hint


def _missing(value: object, location: Location, declared: Any) -> tuple[str, str]:
    example = _EXAMPLES[_declared_at(location[:-1])][str(location[-1])]
    return "is missing", f"write for example {json.dumps(example)}"


def _not_an_object(value: object, location: Location, declared: Any) -> tuple[str, str]:
    fields = model.written_fields(declared)
    example = json.dumps(_EXAMPLES[declared])
    return f"must be an object with {', '.join(fields)}, not {show_value(value)}", f"write for example {example}"


def _not_a_choice(value: object, location: Location, declared: Any) -> tuple[str, str]:
    *others, last = (str(choice).lower() for choice in get_args(declared))
    known = [choice for choice in get_args(declared) if isinstance(choice, str)]
    guess = nearest_name(value, known) if isinstance(value, str) else None
    message = f"must be {', '.join(others)} or {last}, not {show_value(value)}"
    return message, f"did you mean {guess!r}?" if guess else "write one of them"


def _not_a_count(value: object, location: Location, declared: Any) -> tuple[str, str]:
    return f"must be {COUNT_FORM}, not {show_value(value)}", "write a whole number such as 3"


def _not_a_flag(value: object, location: Location, declared: Any) -> tuple[str, str]:
    return f"must be true or false, not {show_value(value)}", "write true or false, without quotes"


_SENTENCES: Mapping[str, Callable[[object, Location, Any], tuple[str, str]]] = {
    "extra_forbidden": _unknown_field,
    "missing": _missing,
    "model_type": _not_an_object,
    "literal_error": _not_a_choice,
    "bool_type": _not_a_flag,
    **dict.fromkeys(("int_type", "greater_than_equal", "less_than_equal"), _not_a_count),
}
"""Type of a pydantic error to the function that returns its message and remedy."""


# --- places ----------------------------------------------------------------------------------------


def _declared_at(location: Location) -> Any:
    """Return the type that the model declares at a location, None if it declares none."""
    declared: Any = model.Spec
    for part in location:
        if isinstance(declared, type) and issubclass(declared, BaseModel):
            field = declared.model_fields.get(str(part))
            declared = _without_wrapping(field.annotation) if field else None
        else:
            declared = _without_wrapping(next(reversed([arg for arg in get_args(declared) if arg is not ...]), None))
    return declared


def _without_wrapping(declared: Any) -> Any:
    """Return a type without metadata and without the None of an optional field."""
    while get_origin(declared) in (Annotated, Union, types.UnionType):
        declared = next(arg for arg in get_args(declared) if arg is not type(None))
    return declared


def _inside(data: Any, part: str | int) -> Any:
    if isinstance(data, dict):
        return data.get(part)
    is_item = isinstance(data, list | tuple) and isinstance(part, int) and part < len(data)
    return data[part] if is_item else None
