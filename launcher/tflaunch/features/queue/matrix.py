"""The values of `--matrix`, and the runs that they make."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Mapping, Sequence

import click

from tflaunch.clusterspec.values import nearest_name
from tflaunch.features.secret_names import looks_secret
from tflaunch.plan import placeholders
from tflaunch.plan.model import Plan

MOST_RUNS = 1000
"""Maximum number of runs that a single command puts into the queue."""
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
_NUMBER = re.compile(r"[-+\d.eE]+")
_EXAMPLE = "write --matrix lr=0.1,0.01"


def combinations(given: Sequence[str]) -> list[dict[str, str]]:
    """Return the values of each run; the last name changes fastest.

    Raises:
        click.UsageError: one of them is not valid.
    """
    values: dict[str, list[str]] = {}
    for text in given:
        name, listed = _values(text)
        if name in values:
            raise click.UsageError(f"--matrix {name}: is given twice; write all values in one: {name}=V1,V2")
        values[name] = listed
    made = [dict(zip(values, combination, strict=True)) for combination in itertools.product(*values.values())]
    if len(made) > MOST_RUNS:
        raise click.UsageError(f"--matrix: makes {len(made)} runs; give fewer values, for at most {MOST_RUNS}")
    return made


def _values(text: str) -> tuple[str, list[str]]:
    name, equals, rest = text.partition("=")
    if not equals or not _NAME.fullmatch(name):
        raise click.UsageError(f"--matrix {text!r:.60} is not NAME=V1,V2; {_EXAMPLE}")
    values = _values_of_list(name, rest) if rest.startswith("[") else [value.strip() for value in rest.split(",")]
    if not all(values):
        raise click.UsageError(f"--matrix {name}: a value is empty; {_EXAMPLE}")
    if any("\0" in value or "\n" in value for value in values):
        raise click.UsageError(f"--matrix {name}: a value is not one line of text; {_EXAMPLE}")
    if looks_secret(name) and not all(map(_NUMBER.fullmatch, values)):
        remedy = 'give it by "secrets" in the spec, or call it otherwise if it is none'
        raise click.UsageError(f"--matrix {name}: looks secret, and is shown in the names of the runs; {remedy}")
    if len(set(values)) < len(values):
        twice = next(value for value in values if values.count(value) > 1)
        raise click.UsageError(f"--matrix {name}: has {twice!r:.60} twice; remove one of them")
    return name, values


def _values_of_list(name: str, text: str) -> list[str]:
    """Return the values in a list of JSON, which may contain commas."""
    try:
        values = json.loads(text, parse_float=str)
    except (ValueError, RecursionError):
        values = None
    if not isinstance(values, list) or not all(type(value) in (str, int, float) for value in values):
        example = f"""--matrix '{name}=["64,32","128"]'"""
        raise click.UsageError(f"--matrix {name}: is not a list of texts and numbers in JSON; write {example}")
    return [value if isinstance(value, str) else json.dumps(value) for value in values] or [""]


def check_names(plan: Plan, values: Mapping[str, str]) -> None:
    """Require that the placeholders of a plan are those of the values.

    Raises:
        click.UsageError: one of them has no counterpart.
    """
    used = placeholders.matrix_names(plan)
    for name in used:
        if name not in values:
            near = nearest_name(name, list(values))
            meant = f"did you mean --matrix {name}=… instead of {near}?" if near else f"add --matrix {name}=1,2"
            raise click.UsageError(f"{{matrix.{name}}} in the spec has no value; {meant}")
    for name in values:
        if name not in used:
            where = f"write {{matrix.{name}}} where its value belongs: in command, env or workdir"
            raise click.UsageError(f"--matrix {name}: the spec does not use it; {where}")
