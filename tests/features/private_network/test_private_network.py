"""`"network": "private"`: a run whose tasks only the run itself reaches, or no run at all."""

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from support.launch import Launch
from support.specs import SMALLEST, made
from tflaunch.features.private_network.network_rules import find_problems

pytestmark = pytest.mark.cli

FORBID = """
import os, sys
from tflaunch_worker import linux
linux.call_c("unshare", 0x10000000)
for name, text in (("setgroups", "deny"), ("uid_map", "0 0 1"), ("gid_map", "0 0 1")):
    open(f"/proc/self/{name}", "w").write(text)
for kind in ("user", "net"):
    open(f"/proc/sys/user/max_{kind}_namespaces", "w").write("0")
os.execv(sys.argv[1], sys.argv[1:])
"""
FACTS = "readlink /proc/self/ns/net; echo $TF_CONFIG; cat /proc/net/dev"
NO_WAY_OUT = "tasks have no way out of the private network of localhost: pasta is not installed there (package passt)"


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"cluster": {"worker": ["alpha:1", "beta:2", "gamma:3"]}}, "has beta beside alpha"),
        ({"sidecars": {"a": {"command": "b", "host": "beta"}}}, "has beta beside alpha"),
        ({"spares": ["beta"]}, "NetworkPolicy"),
        ({"cluster": {"worker": ["alpha", "beta"]}, "hosts": {"beta": {"docker": "b"}}}, "--exclusive"),
    ],
)
def test_a_private_network_is_that_of_one_host(fields: dict[str, Any], words: str) -> None:
    """Those of sidecars and spare hosts count."""
    spec = made({**SMALLEST, "cluster": {"worker": ["alpha", "alpha"]}, "network": "private", **fields})
    (problem,) = find_problems(spec, Path())
    assert (problem.severity, problem.where, words in problem.sentence()) == ("error", "network", True)


def test_tasks_share_a_network_with_nothing_else(launch: Launch) -> None:
    """Across a restart; only pasta leads out, where it is installed."""
    script = f"{FACTS}; [ $TFLAUNCH_ATTEMPT = 1 ] || exit 42"
    sidecars = {"side": {"command": ["sh", "-c", FACTS]}}
    launch.succeed("up", launch.shell(script, network="private", sidecars=sidecars, restart={"backoff": [0, 0]}))
    lines = [line for task in ("worker:0", "worker:1", "side") for line in launch.log(task).splitlines()]
    (network,) = {line for line in lines if line.startswith("net:[")}
    assert network != os.readlink("/proc/self/ns/net")
    interfaces = {line.partition(":")[0].strip() for line in lines if line.startswith(" ") and ":" in line}
    assert interfaces - {"pasta"} == {"lo"}
    assert '"cluster":{"worker":["localhost:' in launch.log("worker:0")
    assert not launch.survivors()


def test_without_a_way_out_the_user_is_told(launch: Launch) -> None:
    """Once, before anything starts; `doctor` knows it, too."""
    (launch.directory / "sh").symlink_to("/bin/sh")
    launch.env["PATH"] = str(launch.directory)
    about = {"strategy": "mirrored", "network": "private", "restart": {"backoff": [0, 0]}}
    spec = launch.shell("[ $TFLAUNCH_ATTEMPT = 1 ] || exit 42", workers=1, **about)
    ended = launch.succeed("up", spec)
    assert ended.stderr.count(f"warning: {NO_WAY_OUT}\n") == 1, ended.stderr
    kinds = [record["kind"] for record in launch.journal() if record.get("no_way_out") or "start" in record["kind"]]
    assert kinds[0] == "host_joined"
    examined = launch.run("doctor", spec)
    assert NO_WAY_OUT in examined.stdout, examined.stdout


@pytest.mark.needs("root")
def test_where_it_is_not_possible_no_program_starts(launch: Launch) -> None:
    """The reason and the remedy are known in the preflight, and `doctor` finds them before."""
    launch.prefix = [sys.executable, "-c", FORBID]
    spec = launch.shell("echo started", network="private")
    ended = launch.up(spec, code=3)
    assert (
        '"network": "private" is not possible on localhost: this host does not let users make namespaces:'
        " user.max_user_namespaces is 0\n"
    ) in ended.stderr
    assert 'allow it there, or write "network": "fenced"' in ended.stderr
    assert "started" not in ended.stdout
    examined = launch.run("doctor", spec, code=3)
    assert "a private network is not possible: this host does not let users make namespaces" in examined.stdout
