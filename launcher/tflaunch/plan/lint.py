"""Check a spec's fields against each other, as far as TensorFlow's rules can be checked beforehand.

A rule is a function from a spec to problems. An error means that the job cannot train; a warning means that the spec
probably does not do what its author intended.
"""

from __future__ import annotations

from tflaunch.clusterspec.model import Spec
from tflaunch.errors import Problem
from tflaunch.plan import cluster_rules, setting_rules, task_rules

_RULES = (*cluster_rules.RULES, *task_rules.RULES, *setting_rules.RULES)


def check_spec(spec: Spec) -> list[Problem]:
    """Return all problems of a spec, errors first."""
    problems = [problem for rule in _RULES for problem in rule(spec)]
    return sorted(problems, key=lambda problem: problem.severity)


def refused_spares(spec: Spec, scheduler: str) -> list[Problem]:
    """Return the problem of a spec with spare hosts for a scheduler, which gives out hosts for tasks only."""
    if not spec.spares:
        return []
    message = f"are hosts that the spec names, and `--on {scheduler}` runs on nodes that have tasks from the start"
    return [Problem.error("spares", message, "remove it")]


def unused_image(spec: Spec, scheduler: str | None) -> list[Problem]:
    """Return the problem of a spec with an image, because `up` starts tasks outside of images.

    With a scheduler it is an error instead of a warning: the tasks would lack what the image contains.

    Args:
        spec: the spec.
        scheduler: the value of `--on`, None without it.
    """
    image = spec.container.image
    if image is None or (scheduler is None and spec.kubernetes is not None):
        return []
    if scheduler is None:
        message = "is not used: `up` starts tasks on the hosts themselves, not in an image"
        return [
            Problem.warning("container.image", message, "leave it out, or use `tflaunch render` where it is needed")
        ]
    message = f"tasks of `up --on {scheduler}` run on the nodes themselves, not in {image!r}"
    hint = (
        'start the container in "command", for example ["apptainer", "exec", IMAGE, …], and leave container.image out'
    )
    return [Problem.error("container.image", message, hint)]
