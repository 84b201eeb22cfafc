"""`setup` in a spec, with the installed command."""

import os
import sys

from support.launch import Launch

VENV = f"{sys.executable} -m venv --without-pip .venv"
SAYS = ["python", "-c", "import sys, extra; print(extra.WORDS, sys.prefix)"]
INSTALL = "cp extra.txt $(echo .venv/lib/python*)/site-packages/extra.py"


def test_tasks_run_in_what_setup_has_made(launch: Launch) -> None:
    """The second run does not make it again; another content does, and prune removes the old one."""
    (launch.directory / "extra.txt").write_text("WORDS = 'one'")
    spec = launch.spec(cluster={"worker": 2}, strategy="none", command=SAYS, setup=[VENV, INSTALL])
    first, second = (launch.up(spec, code=0).stdout.splitlines() for _ in range(2))
    assert sorted(first) == sorted(second)
    words, prefix = first[0].split(" | ")[1].split()
    assert words == "one"
    assert prefix.startswith(str(launch.home / "setups"))
    assert not (launch.directory / ".venv").exists()
    (launch.directory / "extra.txt").write_text("WORDS = 'two'")
    assert "two" in launch.up(spec, code=0).stdout
    for place in (launch.home / "setups").iterdir():
        os.utime(place, (0, 0))
    assert "environments that `setup` has made: 2" in launch.succeed("prune", "--yes").stdout
    assert not list((launch.home / "setups").iterdir())


def test_who_cannot_serve_it_refuses_it(launch: Launch) -> None:
    spec = launch.shell("true", roles={"worker": {"setup": "make env"}}, container={"image": "train:1"})
    said = "roles.worker.setup: hosts are prepared by tflaunch's agents, and no other engine has one"
    assert said in launch.run("render", spec, "--to", "compose", code=2).stderr
