"""Types of the fields of a spec that are for containers, pods and jobs of Slurm."""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BeforeValidator

from tflaunch.clusterspec.validators import ReadBy, Text, matching, object_of
from tflaunch.clusterspec.values import InvalidValueError, must_be, show_value

_OWN_POD_FIELDS = {
    "containers": 'what is said of the task\'s own is in "container" beside "pod"',
    **dict.fromkeys(("hostname", "restartPolicy", "subdomain"), "it follows from the task"),
}
_OWN_CONTAINER_FIELDS = {
    **dict.fromkeys(("command", "args"), 'write "command" of the spec'),
    "image": 'write "image" into "container" of the spec, or "launcher_image" for the supervisor',
    "name": "it is always the same",
    "workingDir": 'write "workdir" of the spec',
}
"""Fields that tflaunch sets itself, each with what to do instead."""
_RESERVED_OPTIONS = ("array", "help", "parsable", "test-only", "uid", "usage", "version", "wait", "wrap")


def _check_not_reserved(value: object) -> object:
    if value in _RESERVED_OPTIONS:
        raise InvalidValueError(f"--{value} would make something else of the job", "remove it: one job runs all tasks")
    return value


def _check_option_value(value: object) -> str:
    if value is True:
        return ""
    text = show_value(value) if isinstance(value, int) else value
    if isinstance(value, bool) or not isinstance(text, str) or not text or not text.isprintable():
        raise must_be("text, a number, or true", value, "write text, or true for an option without a value")
    return text


def _without(own: Mapping[str, str]) -> BeforeValidator:
    """Return a check that an object has none of our fields."""

    def check_fields(value: Mapping[object, object]) -> object:
        for field, remedy in own.items():
            if field in value:
                raise InvalidValueError(f"sets {field!r}, which tflaunch sets", f"remove it: {remedy}")
        return value

    return BeforeValidator(check_fields)


Image = Annotated[
    str, matching(r"/?[A-Za-z0-9][A-Za-z0-9._/:@-]*", 'the name of an image such as "ghcr.io/ann/train:1", or its file')
]
Cores = Annotated[
    str, matching(r"[0-9]{1,4}(\.[0-9]{1,3})?", 'a number of cores such as "2" or "0.5"', takes_numbers=True)
]
Memory = Annotated[str, matching(r"[1-9][0-9]{0,6}(Mi|Gi)", 'memory such as "512Mi" or "4Gi"')]
NodeFeature = Annotated[
    str, matching(r"[A-Za-z0-9][A-Za-z0-9._/=-]*", 'a feature such as "a100", or a label such as "disk=ssd"')
]
MountPath = Annotated[str, matching(r"/[^:\s]+", 'a path in the container such as "/data"')]
Volume = Annotated[
    str,
    matching(
        r"/[^:\s]*|[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?",
        'a path of the host such as "/data", or the name of a claim or volume',
    ),
]
Claim = Annotated[
    str, matching(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?", 'the name of a PersistentVolumeClaim such as "runs"')
]
OptionName = Annotated[
    str,
    matching(r"[a-z][a-z0-9-]+", 'a long option of sbatch such as "partition"'),
    BeforeValidator(_check_not_reserved),
]
OptionValue = Annotated[
    str, ReadBy(_check_option_value, {"anyOf": [{"type": ["string", "integer"], "minLength": 1}, {"const": True}]})
]
PodFields = Annotated[
    Mapping[Text, Any], _without(_OWN_POD_FIELDS), object_of('an object such as {"nodeSelector": {"gpu": "a100"}}')
]
ContainerFields = Annotated[
    Mapping[Text, Any], _without(_OWN_CONTAINER_FIELDS), object_of('an object such as {"imagePullPolicy": "Always"}')
]
"""Fields of a pod's spec and of its container, which Kubernetes checks."""
