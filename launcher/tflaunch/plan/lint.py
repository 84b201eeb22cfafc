"""Check a spec's fields against each other, by TensorFlow's rules.

A rule is a function from a spec to problems. An error means that the job cannot train; a warning means that the spec
probably does not do what its author intended.
"""

from __future__ import annotations

from tflaunch.clusterspec.model import Spec
from tflaunch.errors import Problem
from tflaunch.plan import cluster_rules, placeholders, setting_rules, task_rules

_RULES = (*cluster_rules.RULES, *task_rules.RULES, *setting_rules.RULES)


def check_spec(spec: Spec) -> list[Problem]:
    """Return all problems of a spec, errors first."""
    problems = [problem for rule in _RULES for problem in rule(spec)]
    return sorted(problems, key=lambda problem: problem.severity)


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
