"""Compare two runs: their code, packages, specs, hosts and results."""

import json
import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from tflaunch.client import runs
from tflaunch.core.job_state import Job
from tflaunch.explain import causes, status, summary
from tflaunch.plan import serialize
from tflaunch.plan.model import Plan
from tflaunch.store.journal import read_job
from tflaunch.store.run_dir import COLLECTED_NAME, RECORD_NAME
from tflaunch_worker import file_trees, wire
from tflaunch_worker.features.file_parts import hash_file
from tflaunch_worker.readable import printable

SECTIONS = ("code", "packages", "spec", "hosts", "results")
_MOST_RECORD = 64 * 1024 * 1024
_LONGEST = 80  # characters of a value in a line
_HASHES = (40, 64)  # characters of a commit and of a SHA-256
_SHOWN_HASH = 12


class Difference(NamedTuple):
    """A value that differs; None if a run does not have it."""

    section: str
    name: str
    first: Any
    second: Any

    def sentence(self) -> str:
        """Return the difference as one line."""
        return f"{self.section}: {printable(self.name, 200)}: {_shown(self.first)} -> {_shown(self.second)}"


Differences = list[Difference]


def compare(first: Path, second: Path) -> Differences:
    """Compare the runs of two directories.

    Raises:
        TflaunchError: a journal is missing or damaged.
    """
    return list(_differences(_facts(first), _facts(second)))


def compare_records(first: Mapping[str, Any], second: Mapping[str, Any]) -> Differences:
    """Compare the records of two runs."""
    return list(_differences(_facts_of_record(first), _facts_of_record(second)))


def read_record(path: Path) -> dict[str, Any]:
    """Return the record of a run (see `run_record`), {} if it is unreadable."""
    try:
        file = path / RECORD_NAME
        record = wire.parse(file.read_bytes()) if file.stat().st_size <= _MOST_RECORD else {}
    except (OSError, ValueError):
        return {}
    return record if isinstance(record, dict) else {}


def _differences(first: Mapping[str, Any], second: Mapping[str, Any]) -> Iterator[Difference]:
    for section in SECTIONS:
        one, other = (dict(_flat(facts.get(section, {}))) for facts in (first, second))
        for name in dict.fromkeys([*one, *other]):
            if one.get(name) != other.get(name):
                yield Difference(section, name, one.get(name), other.get(name))


def _flat(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the values inside an object, each with its path."""
    if isinstance(value, Mapping) and value:
        for key, inner in value.items():
            yield from _flat(inner, f"{name}.{key}" if name else str(key))
    elif isinstance(value, list) and value:
        for index, inner in enumerate(value):
            yield from _flat(inner, f"{name}[{index}]")
    else:
        yield name, value


def _facts(path: Path) -> dict[str, Any]:
    records, job = read_job(path)
    record = _facts_of_record(read_record(path))
    last = records[-1]
    code = last["exit_code"] if last["kind"] == "ended" else job.exit_code
    tensorflow = {task.task: task.tensorflow for task in job.tasks.values() if task.tensorflow}
    return {
        **record,
        "spec": _spec(runs.plan_of(path)),
        "hosts": {"this machine": record["hosts"], "tensorflow": tensorflow},
        "results": {**_results(job, code), "collected": _collected(path / COLLECTED_NAME)},
    }


def _facts_of_record(record: Mapping[str, Any]) -> dict[str, Any]:
    names = ("tflaunch", "python", "interpreter")
    packages = record.get("packages", {})
    return {
        "code": record.get("code", {}),
        "packages": {**{name: record.get(name) for name in names}, **(packages if type(packages) is dict else {})},
        "hosts": record.get("machine", {}),
    }


def _spec(plan: Plan) -> dict[str, Any]:
    """Return a plan with processes and hosts by name.

    So a new one does not rename the others.
    """
    data = serialize.as_json(plan)
    for field, name in (("tasks", "task"), ("sidecars", "task"), ("hosts", "host")):
        data[field] = {item.pop(name): item for item in data[field]}
    return data


def _results(job: Job, code: int | None) -> dict[str, Any]:
    return {
        "state": status.state_of_run(job, code),
        "exit code": code,
        "cause": "" if job.culprit is None or not code else causes.describe(job.culprit, job.plan),
        "restarts": summary.restarts(job),
        "tasks": {
            task.task: {"step": task.reached.step or None, "epoch": task.reached.epoch or None, **dict(task.metrics)}
            for task in job.tasks.values()
        },
    }


def _collected(directory: Path) -> dict[str, str]:
    found = {}
    if directory.is_dir():
        for entry in file_trees.walk(str(directory), lambda entry: entry.depth > 0 or not entry.name.startswith(".")):
            if entry.is_directory or entry.path.startswith(".") or not stat.S_ISREG(entry.status().st_mode):
                continue
            with open(os.open(entry.name, os.O_RDONLY | os.O_NOFOLLOW, dir_fd=entry.directory), "rb") as file:
                found[entry.path] = hash_file(file)[1]
    return found


def _shown(value: Any) -> str:
    if value is None:
        return "(none)"
    if isinstance(value, str) and len(value) in _HASHES and not set(value) - set("0123456789abcdef"):
        return value[:_SHOWN_HASH]
    text = value if isinstance(value, str) and value else json.dumps(value)
    return printable(text, _LONGEST)
