"""Check a spec's fields against each other, by TensorFlow's rules.

A rule is a function from a spec to problems. An error means that the job cannot train; a warning means that the spec
probably does not do what its author intended.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from tflaunch.clusterspec.model import Spec
from tflaunch.errors import Problem
from tflaunch.plan import cluster_rules, placeholders, setting_rules, task_rules

_RULES = (*cluster_rules.RULES, *task_rules.RULES, *setting_rules.RULES)
# Sections that say which tasks there are, and those whose rules look at no others.
_SHAPE = ("cluster", "command", "discover", "strategy", "roles", "hosts", "sidecars", "kubernetes")
_APART = ("restart", "timeouts", "retention", "sync", "collect", "checkpoints", "secrets", "env", "notify", "elastic")


def check_spec(spec: Spec) -> list[Problem]:
    """Return all problems of a spec, errors first."""
    problems = [problem for rule in _RULES for problem in rule(spec)]
    return sorted(problems, key=lambda problem: problem.severity)


def certain_problems(problems: Iterable[Problem], spec: Spec, places: Sequence[str]) -> list[Problem]:
    """Return those problems of a spec that do not come from fields left out of it.

    Args:
        problems: all of them.
        spec: the spec without these fields.
        places: the places of the fields.
    """
    is_shapeless = bool(spec.discover or spec.pool or spec.kubernetes) or any(map(_gives_shape, places))

    def is_certain(problem: Problem) -> bool:
        if is_shapeless and _steps(problem.where)[0] not in _APART:
            return False
        return not any(_may_concern(problem.where, place) for place in places)

    return [problem for problem in problems if is_certain(problem)]


def _gives_shape(place: str) -> bool:
    """Whether a place says which tasks there are, where, and what they run."""
    section, *parts = _steps(place)
    return section in _SHAPE and (section == "cluster" or len(parts) < 2 or parts[-1] in ("command", "server"))


def _steps(place: str) -> list[str]:
    return re.split(r"[.\[]", place)


def _may_concern(where: str, place: str) -> bool:
    """Whether one place contains the other, or both are fields of the same name."""
    parts, others = _steps(where), _steps(place)
    return all(one == other for one, other in zip(parts, others, strict=False)) or parts[-1] == others[-1]


def matrix_warnings(spec: Spec) -> list[Problem]:
    """Return warnings about placeholders that only `up --matrix` fills in."""
    return [
        Problem.warning(where, f"{{matrix.{name}}} gets its values from `up --matrix`", f"add --matrix {name}=V1,V2")
        for where, text in task_rules.texts_of(spec)
        for name in placeholders.matrix_values_in(text)
    ]


def unused_image(spec: Spec) -> list[Problem]:
    """Return the problem of a spec with an image, in which `up` starts no tasks."""
    if spec.container.image is None or spec.kubernetes is not None:
        return []
    message = "is not used: `up` starts tasks on the hosts themselves, not in an image"
    return [Problem.warning("container.image", message, "leave it out, or use `tflaunch render` where it is needed")]
