"""Planted faults on real hosts: the doctor names each of them, and `up` itself finds closed ports."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from support.launch import Launch
from support.needs import need
from support.netns_hosts import Bed

CLUSTER = {"worker": ["h1:2222", "h2:2223"]}
VENV = Path(sys.executable).parent


def spec(launch: Launch, program: str = "print('ran')", **fields: Any) -> Path:
    """Write a spec of two workers on two hosts, with their own program, in this environment's Python."""
    (launch.directory / "train.py").write_text(program)
    hosts = {name: {"python": str(VENV / "python"), **fields.pop(name, {})} for name in ("h1", "h2")}
    return launch.spec(**{"cluster": CLUSTER, "command": ["python", "train.py"], "hosts": hosts, **fields})


def examined(launch: Launch, path: Path, *arguments: str) -> tuple[int, dict[str, str]]:
    """Return the doctor's exit code, and its findings: check to place and message."""
    done = launch.run("doctor", path, "--json", *arguments)
    assert done.returncode in (0, 3), done.stderr
    shown = json.loads(done.stdout)
    assert shown["ok"] == (done.returncode == 0)
    assert all(finding["hint"] for finding in shown["findings"])
    return done.returncode, {f["check"]: f"{f['where']}: {f['message']}" for f in shown["findings"]}


def fake_packages(directory: Path, **versions: str) -> str:
    """Make a directory in which packages of other versions are found first."""
    for name, version in versions.items():
        place = directory / f"{name}-{version}.dist-info"
        place.mkdir(parents=True)
        (place / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    return str(directory)


def close_port(bed: Bed, host: int, port: int) -> None:
    """Have a host's firewall drop packets to a port."""
    need("nft")
    rules = f"table inet t {{\nchain c {{\ntype filter hook input priority 0;\ntcp dport {port} drop\n}}\n}}\n"
    bed.execute(host, "nft", "-f", "-", stdin=None, input=rules)


def test_a_healthy_cluster_has_no_findings(bed: Bed, launch: Launch) -> None:
    """Two identical hosts, to which the doctor brings the code as `up` would; nothing of it remains afterwards."""
    packages = fake_packages(launch.directory / "packages", tensorflow="2.21.0", tf_keras="2.21.0", keras="3.12.0")
    rest: dict[str, Any] = {"env": {"PYTHONPATH": packages}, "sync": {"paths": ["train.py"]}}
    code, found = examined(bed.control(launch), spec(launch, **rest))
    assert (code, {check: text for check, text in found.items() if check not in ("disk", "memory")}) == (0, {})
    assert not (launch.home / "doctor").exists()
    assert not bed.wait_empty()
    for host in bed.hosts:
        assert not list(bed.home_of(host).rglob("runs/*"))
    shown = launch.run("doctor", spec(launch, **rest))
    assert shown.stdout.startswith("2 of 2 hosts reached\nreach        ok\n")
    code, found = examined(launch, spec(launch, **rest, command=["python", "-m", "absent"]))
    assert (code, found["program"]) == (3, "h2 (worker:1): the module is not there")


@pytest.mark.thorough
def test_every_fault_of_a_host_is_found_in_one_visit(bed: Bed, launch: Launch) -> None:
    """Port, name, versions, program, clock, proxy, checkpoint directory: each is named, with exit code 3."""
    versions = {"tensorflow": "2.21.0", "tf_keras": "2.21.0", "keras": "3.12.0"}
    same = fake_packages(launch.directory / "same", **versions)
    other = fake_packages(launch.directory / "other", tensorflow="2.18.0", keras="3.5.0")
    elsewhere = launch.directory / "elsewhere"
    elsewhere.mkdir()
    late = launch.directory / "python-of-tomorrow"
    late.write_text(
        f"#!{VENV / 'python'}\nimport sys, time, os\n"
        f"if '-c' not in sys.argv or 'stdin' not in ' '.join(sys.argv): os.execv({str(VENV / 'python')!r}, sys.argv)\n"
        "real = time.time\ntime.time = lambda: real() + 86400\n"
        "code = sys.argv[sys.argv.index('-c') + 1]\nsys.argv = ['-c', *sys.argv[sys.argv.index('-c') + 2:]]\n"
        "sys.path.insert(0, '')\nexec(code)\n"
    )
    late.chmod(0o755)
    program = "from x import BackupAndRestore\nBackupAndRestore('state')"
    (elsewhere / "train.py").write_text(program + " # other")
    path = spec(
        launch,
        program,
        env={"grpc_proxy": "http://proxy:3128"},
        h1={"env": {"PYTHONPATH": same}, "workdir": str(launch.directory)},
        h2={"env": {"PYTHONPATH": other}, "workdir": str(elsewhere), "python": str(late)},
        command=["python", "train.py", "--state-dir", str(bed.home / "state")],
        timeouts={"connect": 12},
    )
    close_port(bed, 2, 2223)
    bed.etc_hosts[2].write_text(bed.everybody().replace(f"{bed.address(1)} h1", "127.0.1.1 h1"))
    # It ends with its input: a kill here would hit the program that started it there.
    script = "import socket, sys; s = socket.create_server(('', 2222)); print('in', flush=True); sys.stdin.read()"
    argv = [*bed.host_prefix(1), "python3", "-c", script]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stdin=subprocess.PIPE) as holder:
        assert holder.stdout.readline() == b"in\n"
        code, found = examined(bed.control(launch), path)
        holder.communicate()
    assert code == 3
    assert "port 2222 is in use by" in found["ports"]
    assert "tensorflow differs: 2.21.0 on h1; 2.18.0 on h2" in found["tensorflow"]
    assert "tf_keras" in found["keras"] or "keras differs" in found["keras"]
    assert "train.py is not the same on h1 and on h2" in found["program"]
    assert "on h2 the name 'h1' means 127.0.1.1" in found["names"]
    assert "worker:1 at h2:2223: timed out" in found["peers"] or "worker:0 at h1:2222" in found["peers"]
    assert "grpc_proxy" in found["proxies"]
    assert re.search(r"\b(1 d|23 h 59 min) ahead", found["clock"])  # less the time until its answer arrives
    assert str(bed.home / "state") in found["checkpoints"]


def test_up_finds_a_closed_port_before_tensorflow_starts(bed: Bed, launch: Launch) -> None:
    """Exit 3 with the pairs that cannot connect; --no-preflight skips the check."""
    close_port(bed, 2, 2223)
    path = spec(launch, "open('started', 'w')", timeouts={"connect": 12})
    ended = bed.control(launch).up(path, code=3)
    assert "h1 cannot reach worker:1 at h2:2223: timed out" in ended.stderr
    assert not (launch.directory / "started").exists()
    launch.succeed("up", path, "--no-preflight")
