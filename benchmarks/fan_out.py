"""Measure how long a client takes for `true` on N hosts over SSH: the whole command, start to return.

The hosts are sshd processes on this machine. Each round is compared with its own OpenSSH baseline.
"""

import json
import os
import shlex
import shutil
import tempfile
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

import peers
from parts import Bench, Part, last_line, nothing, outcome, own_directory
from peers import APT, TFLAUNCH, Job, Launcher
from process_tree import ProcessTree, Run, cpu_of_children, forked, status_of, workshop
from rounds import Found, Sample, figures, in_turn, measured, median, remarks, table
from sshd_hosts import SSHD, USER, Hosts, running

SIZES = (8, 32, 100)
AT_ONCE = 32  # the concurrency of OpenSSH and pdsh
BASE = f"OpenSSH, `xargs -P{AT_ONCE}`"
CURVE = "the same, KexAlgorithms=curve25519-sha256"
PDSH = f"pdsh -f{AT_ONCE}"
NEW = "tflaunch up, on new hosts"
NOTHING = ("true",)
SAMPLE = 0.01  # seconds between two samples of a client's memory
LIMIT = 30.0
TEXT = """\
`true` once on each of N hosts, which are sshd processes on this machine and share its cores with the client.
The ratio is to OpenSSH, which spends nearly all its time in its default key exchange; the second row is OpenSSH
with the one that other clients use. *On new hosts* tflaunch brings its agent along; else it is there from the
last time. It starts a supervised agent on each host where the others run a command: most of its time is Python
starting on the hosts, which on a real cluster are not this machine. *All CPU* is that of the machine until the
hosts are done as well; memory and threads are the most that all processes of the client had together, looked at
in a run of its own.
"""


def measure(bench: Bench) -> dict[str, Found]:
    """Measure all clients with each number of hosts."""
    for program in (SSHD, "ssh", "ssh-keygen", "xargs"):
        if not shutil.which(program):
            raise SystemExit(f"no {program}: {APT.format('openssh-server openssh-client')}")
    found = {}
    for size in SIZES:
        with tempfile.TemporaryDirectory(prefix="hosts-") as scratch, running(Path(scratch), size) as hosts:
            # In another process: the hosts must not be descendants of the measuring process, as the clients are.
            found[str(size)] = forked(partial(_compare, hosts, bench.repeats))
    return found


def _compare(hosts: Hosts, repeats: int) -> Found:
    with workshop("fan-out") as (tree, scratch):
        size = len(hosts.hosts)
        jobs = {client.name: (client, Job(size, NOTHING, own_directory(scratch))) for client in _clients(hosts)}
        fan = Fan(tree, hosts)
        able, said = [], {}
        for name, (client, job) in jobs.items():
            is_able, said[name] = fan.verify(client, job)
            able += [name] if is_able else []
        rounds = in_turn(f"fan-out, {size} hosts", able, repeats, lambda name: fan.out(*jobs[name])[1])
        for name in able if size == SIZES[-1] else []:
            weight = fan.weigh(*jobs[name])
            rounds[name] = [{**sample, **weight} for sample in rounds[name]]
        return Found(rounds, said)


class Fan:
    """Runs a client on all hosts."""

    def __init__(self, tree: ProcessTree, hosts: Hosts) -> None:
        self._tree = tree
        self._hosts = hosts

    def out(self, client: Launcher, job: Job, output: Path | None = None) -> tuple[Run, Sample]:
        """Run the client, until the hosts are done as well."""
        argv = client.argv(job)
        own, machine = cpu_of_children(), _cpu_of_machine()
        run = self._tree.run(argv, job.directory, output or nothing(), LIMIT)
        own = cpu_of_children() - own
        # Waiting also keeps the next client from paying for this one's leftovers.
        left = run.left_running + self._hosts.left_running()
        cpu = {"client_cpu": own, "all_cpu": _cpu_of_machine() - machine}
        return run, outcome(run.exit_code, seconds=run.seconds, left=left, **cpu)

    def verify(self, client: Launcher, job: Job) -> tuple[bool, list[str]]:
        """Verify, with tasks that write to a file, that each host runs one; this is also the warm-up."""
        if not client.program:
            return False, [client.remedy]
        marks, script, output = (job.directory / name for name in ("marks", "mark.sh", "output"))
        script.write_text(f"echo $HOME >>'{marks}'\n")
        marks.touch()
        run, _ = self.out(client, job._replace(command=("/bin/sh", str(script))), output)
        said = []
        if sorted(marks.read_text().split()) != sorted(str(host.home) for host in self._hosts.hosts):
            said.append("did not run once on each host")
        if run.exit_code:
            said.append(f"exit code {run.exit_code}: {last_line(output)}")
        return not run.exit_code, said

    def weigh(self, client: Launcher, job: Job) -> Sample:
        """Run the client once more and sample it continuously, untimed because sampling slows it down."""
        seen = [(0, 0)]
        done = threading.Event()

        def look() -> None:
            while not done.wait(SAMPLE):
                statuses = [status for pid in self._tree.living() if "VmRSS" in (status := status_of(pid))]
                resident = sum(int(status["VmRSS"].split()[0]) for status in statuses)
                seen.append((resident, sum(int(status["Threads"]) for status in statuses)))

        looking = threading.Thread(target=look)
        looking.start()
        try:
            self.out(client, job)
        finally:
            done.set()
            looking.join()
        return {"memory_mib": max(kilobytes for kilobytes, _ in seen) / 1024, "threads": max(n for _, n in seen)}


def _clients(hosts: Hosts) -> list[Launcher]:
    """Return every row of the table, the baseline first."""
    ssh = peers.find("ssh")

    def openssh(*options: str) -> Callable[[str, Job], list[str]]:
        def argv(program: str, job: Job) -> list[str]:
            client = [program, "-n", "-F", str(hosts.ssh_config), *options, "@", shlex.join(job.command)]
            # Like pdsh, use a session for each: Linux divides CPU time among sessions first, so other load on the
            # machine then slows both clients equally.
            return ["xargs", "-a", str(hosts.names), f"-P{AT_ONCE}", "-I@", "setsid", "--wait", *client]

        return argv

    def pdsh(program: str, job: Job) -> list[str]:
        names = hosts.names.read_text().split()
        use_ssh = ["env", f"PDSH_SSH_ARGS_APPEND=-F {hosts.ssh_config}", program, "-S", "-R", "ssh"]
        return [*use_ssh, f"-f{AT_ONCE}", "-w", ",".join(names), shlex.join(job.command)]

    def on_known_hosts(program: str, job: Job) -> list[str]:
        spec = job.directory / "fan_out.json"
        spec.write_text(json.dumps(_spec(hosts, job)))
        return ["env", "-u", "SSH_AUTH_SOCK", f"HOME={hosts.client_home}", program, "up", str(spec)]

    def on_new_hosts(program: str, job: Job) -> list[str]:
        hosts.empty_homes()
        return on_known_hosts(program, job)

    return [
        Launcher(BASE, ssh, "", openssh()),
        Launcher(CURVE, ssh, "", openssh("-oKexAlgorithms=curve25519-sha256")),
        Launcher(PDSH, peers.find("pdsh"), APT.format("pdsh"), pdsh),
        Launcher(NEW, peers.tflaunch(), "", on_new_hosts),
        Launcher(TFLAUNCH, peers.tflaunch(), "", on_known_hosts),
    ]


def _spec(hosts: Hosts, job: Job) -> dict[str, object]:
    return {
        "cluster": {"worker": [host.name for host in hosts.hosts]},
        "strategy": "none",
        "command": [*job.command],
        "hosts": {
            host.name: {"ssh": f"{USER}@{host.address}:{hosts.port}", "identity_file": str(hosts.client_key)}
            for host in hosts.hosts
        },
    }


def _cpu_of_machine() -> float:
    user, nice, system, _, _, interrupts, soft_interrupts = Path("/proc/stat").read_text().split()[1:8]
    ticks = sum(map(int, (user, nice, system, interrupts, soft_interrupts)))
    return ticks / os.sysconf("SC_CLK_TCK")


def section(found: dict[str, Found]) -> list[str]:
    """Return the lines of the document."""
    *_, most = found
    head = ["client", *(cell for size in found for cell in (f"N = {size}, s", "ratio"))]
    head += [f"N = {most}: its own CPU, s", "all CPU, s", "its memory, MiB", "its threads"]
    weights = ("client_cpu", "all_cpu", "memory_mib")
    rows = []
    for name in found[most].notes:
        rest = figures(median(found[most], name, what) for what in weights)
        rest.append(f"{median(found[most], name, 'threads') or 0:g}")
        rows.append([name, *measured(found.values(), name, BASE, "seconds"), *rest])
    return [*table(head, rows), "", *remarks(found, "N = {}")]


PART = Part("Hosts over SSH", TEXT, measure, section)
