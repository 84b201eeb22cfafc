"""`rerun` and `diff`: run an earlier plan again, and see what was different."""

from __future__ import annotations

import json

import pytest

from support.launch import Launch

pytestmark = pytest.mark.cli


def test_a_rerun_has_the_same_plan(launch: Launch) -> None:
    """Byte by byte, though the spec's file has changed; other changes are reported."""
    program = launch.directory / "train.sh"
    program.write_text("echo one\n")
    spec = launch.spec("mine.json", cluster={"worker": 2}, strategy="none", command=["sh", "train.sh"])
    assert launch.run("up", spec, "--set", "env.SEED=7").returncode == 0
    first = launch.run_directory()
    spec.write_text("{}")
    program.write_text("echo two; exit 4\n")
    ended = launch.run("rerun", first.name, "--log-dir", launch.directory / "again")
    assert ended.returncode == 4
    assert f"tflaunch: differs from {first.name}: code: programs.train.sh: " in ended.stderr
    assert "two" in ended.stdout
    (second,) = (path for path in first.parent.iterdir() if path != first)
    assert (second / "plan.json").read_bytes() == (first / "plan.json").read_bytes()
    assert (second / "spec.json").read_bytes() == (first / "spec.json").read_bytes()
    known = json.loads((second / "record.json").read_text())
    assert known["machine"]["cores"] >= 1

    compared = launch.run("diff", first.name, second.name)
    assert compared.returncode == 1
    said = compared.stdout.splitlines()
    assert "results: exit code: 0 -> 4" in said
    assert {line.split(":")[0] for line in said} == {"code", "results"}
    same = launch.run("diff", first.name, first.name, "--json")
    assert (same.returncode, json.loads(same.stdout)) == (0, [])
