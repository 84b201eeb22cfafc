"""How long a client takes to run `true` on N hosts over SSH: the whole command, start to return.

The hosts are sshd processes on this machine. All clients are measured in one run and in turn, so that a
busy moment of the machine meets each of them alike, and each round is compared with its own OpenSSH.
"""

import argparse
import json
import multiprocessing
import os
import platform
import resource
import shlex
import shutil
import signal
import statistics
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

from peers import LIMIT, Brood, Job, Launcher, Run
from sshd_hosts import SSHD, USER, Hosts, running

AT_ONCE = 32  # what OpenSSH and pdsh are told
BASE = f"OpenSSH, xargs -P{AT_ONCE}"
NOTHING = ("true",)
HEADING = (
    "| client | median s | min s | max s | ratio to OpenSSH "
    "| client CPU s | all CPU s | peak RSS MiB | peak threads | hosts run | notes |"
)
RULE = "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---|"
SAMPLE = 0.01  # seconds between two looks at a client's memory


@dataclass(frozen=True)
class Weight:
    """The most that the processes of a client had together at any time."""

    resident: int  # bytes
    threads: int


@dataclass(frozen=True)
class Fan:
    """One run, and the seconds of processor time that it took."""

    run: Run
    client_cpu: float
    all_cpu: float
    """Of the whole machine, until the hosts were done too."""


@dataclass
class Row:
    """What was seen of one client."""

    launcher: Launcher
    job: Job
    hosts_run: int | None = None
    weight: Weight | None = None
    notes: list[str] = field(default_factory=list)
    fans: list[Fan] = field(default_factory=list)
    measurable: bool = True

    @property
    def sound(self) -> list[Fan | None]:
        """Each round, None for one that hung or failed."""
        return [fan if fan.run.exit_code == 0 else None for fan in self.fans]


def main() -> None:
    """Start the hosts, and measure in another process."""
    arguments = _arguments()
    for number in (signal.SIGINT, signal.SIGTERM):
        # By way of an exception, so that hosts and clients are ended too.
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    with tempfile.TemporaryDirectory(prefix="fan-out-", ignore_cleanup_errors=True) as directory:
        (hosts_directory := Path(directory) / "hosts").mkdir()
        with running(hosts_directory, arguments.hosts) as hosts:
            # The hosts must not be descendants of who measures: those are the clients.
            measuring = multiprocessing.get_context("fork").Process(
                target=_measure_all, args=(arguments, hosts, Path(directory))
            )
            measuring.start()
            try:
                measuring.join()
            finally:
                measuring.terminate()
                measuring.join()
    sys.exit(measuring.exitcode)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hosts", type=_count, default=100, metavar="N", help="default: 100")
    parser.add_argument("--repeats", type=_count, default=5, metavar="N", help="default: 5")
    parser.add_argument("--json", type=Path, metavar="FILE", help="keep all raw figures")
    arguments = parser.parse_args()
    for program in (SSHD, "ssh", "ssh-keygen", "xargs"):
        if not shutil.which(program):
            parser.error(f"no {program}: apt-get install --no-install-recommends openssh-server openssh-client")
    return arguments


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number from 1 up")
    return int(text)


# The clients.


def _clients(hosts: Hosts) -> list[Launcher]:
    """Return every row of the table, the base first."""
    # The tflaunch beside this interpreter is the one under development; PATH may hold an older one.
    beside = Path(sys.executable).with_name("tflaunch")
    tflaunch = str(beside) if beside.exists() else shutil.which("tflaunch") or ""
    ssh, pdsh = shutil.which("ssh") or "", shutil.which("pdsh") or ""
    install = "apt-get install --no-install-recommends"

    def openssh(*options: str) -> Callable[[str, Job], list[str]]:
        def argv(program: str, job: Job) -> list[str]:
            client = [program, "-n", "-F", str(hosts.ssh_config), *options, "@", shlex.join(job.command)]
            # A session for each, as pdsh has them: whatever else runs on the machine then takes as much
            # processor time from one as from the other (Linux shares it among sessions first).
            return ["xargs", "-a", str(hosts.names), f"-P{AT_ONCE}", "-I@", "setsid", "--wait", *client]

        return argv

    def pdsh_argv(program: str, job: Job) -> list[str]:
        names = hosts.names.read_text().split()
        use_ssh = ["env", f"PDSH_SSH_ARGS_APPEND=-F {hosts.ssh_config}", program, "-S", "-R", "ssh"]
        return [*use_ssh, f"-f{AT_ONCE}", "-w", ",".join(names), shlex.join(job.command)]

    def tflaunch_argv(program: str, job: Job) -> list[str]:
        spec = job.directory / "fan_out.json"
        spec.write_text(json.dumps(_spec(hosts, job)))
        return ["env", "-u", "SSH_AUTH_SOCK", f"HOME={hosts.client_home}", program, "up", str(spec)]

    def on_new_hosts(program: str, job: Job) -> list[str]:
        hosts.empty_homes()
        return tflaunch_argv(program, job)

    return [
        Launcher(BASE, ssh, f"{install} openssh-client", openssh()),
        Launcher(f"{BASE}, curve25519", ssh, "", openssh("-oKexAlgorithms=curve25519-sha256")),
        Launcher(f"pdsh -f{AT_ONCE}", pdsh, f"{install} pdsh", pdsh_argv),
        Launcher("tflaunch up, on new hosts", tflaunch, "pip install .", on_new_hosts),
        Launcher("tflaunch up", tflaunch, "pip install .", tflaunch_argv),
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


# Measuring.


def _measure_all(arguments: argparse.Namespace, hosts: Hosts, scratch: Path) -> None:
    brood = Brood()
    load = os.getloadavg()
    # Each has its own directory, so that no client finds the files of another.
    rows = [
        Row(client, Job(len(hosts.hosts), NOTHING, Path(tempfile.mkdtemp(dir=scratch)))) for client in _clients(hosts)
    ]
    try:
        for row in rows:
            _verify(brood, hosts, row)
        able = [row for row in rows if row.measurable]
        for turn in range(arguments.repeats):
            print(f"round {turn + 1} of {arguments.repeats}", file=sys.stderr)
            first = turn % len(able)
            for row in able[first:] + able[:first]:
                row.fans.append(_fan_out(brood, hosts, row.launcher, row.job, Path(os.devnull)))
        for row in able:
            row.weight = _weigh(brood, hosts, row)
            row.notes += _noteworthy([fan.run for fan in row.fans])
    finally:
        brood.end()
    system = f"{len(os.sched_getaffinity(0))} cores, Python {platform.python_version()}, {platform.system()}"
    said = f"{system} {platform.release()}, load {', '.join(f'{average:.2f}' for average in load)} at the start."
    print("\n".join([said, "", f"{' '.join(NOTHING)} on {len(hosts.hosts)} hosts", "", *_table(rows)]), flush=True)
    if arguments.json:
        report = {"machine": said, "hosts": len(hosts.hosts), "rows": [_raw(row) for row in rows]}
        arguments.json.write_text(json.dumps(report, indent=1) + "\n")


def _fan_out(brood: Brood, hosts: Hosts, launcher: Launcher, job: Job, output: Path) -> Fan:
    argv = launcher.argv(launcher.program, job)
    client, machine = _cpu_of_children(), _cpu_of_machine()
    run = brood.run(launcher, argv, job, output)
    client = _cpu_of_children() - client
    # Also so that the next client does not pay for what this one left to do.
    left = run.left_running + hosts.left_running()
    return Fan(Run(run.seconds, run.exit_code, left), client, _cpu_of_machine() - machine)


def _cpu_of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _cpu_of_machine() -> float:
    user, nice, system, _, _, interrupts, soft_interrupts = Path("/proc/stat").read_text().split()[1:8]
    ticks = sum(map(int, (user, nice, system, interrupts, soft_interrupts)))
    return ticks / os.sysconf("SC_CLK_TCK")


def _verify(brood: Brood, hosts: Hosts, row: Row) -> None:
    """See with tasks that leave a mark that each host runs one, and warm up what is warmed by a run."""
    launcher, directory = row.launcher, row.job.directory
    if not launcher.program:
        row.measurable = False
        row.notes.append(f"not installed: `{launcher.remedy}`")
        return
    marks, script, output = (directory / name for name in ("marks", "mark.sh", "output"))
    script.write_text(f"echo $HOME >>'{marks}'\n")
    marks.touch()
    job = Job(row.job.tasks, ("/bin/sh", str(script)), directory)
    run = _fan_out(brood, hosts, launcher, job, output).run
    ran = marks.read_text().split()
    row.hosts_run = len(set(ran))
    if sorted(ran) != sorted(str(host.home) for host in hosts.hosts):
        row.notes.append("did not run once on each host")
    if run.exit_code is None:
        row.notes.append("hung when verified")
    elif run.exit_code != 0:
        row.measurable = False
        row.notes.append(f"exit code {run.exit_code}: {_last_line(output)}")
    if run.left_running:
        row.notes.append(f"left {run.left_running} running when verified")


def _last_line(output: Path) -> str:
    lines = output.read_text(errors="replace").split("\n")
    return next((line.strip().replace("|", "/") for line in reversed(lines) if line.strip()), "no output")


def _weigh(brood: Brood, hosts: Hosts, row: Row) -> Weight:
    """Run it once more and look all the time: it is not timed, as that would slow it down."""
    seen = [Weight(0, 0)]
    done = threading.Event()

    def look() -> None:
        while not done.wait(SAMPLE):
            seen.append(_weight_of(os.getpid()))

    looking = threading.Thread(target=look)
    looking.start()
    try:
        _fan_out(brood, hosts, row.launcher, row.job, Path(os.devnull))
    finally:
        done.set()
        looking.join()
    return Weight(max(weight.resident for weight in seen), max(weight.threads for weight in seen))


def _weight_of(ancestor: int) -> Weight:
    resident = threads = 0
    for pid in _descendants(ancestor):
        try:
            status = Path(f"/proc/{pid}/status").read_text()
        except OSError:
            continue
        fields = dict(line.split(":", 1) for line in status.splitlines())
        if "VmRSS" in fields:
            resident += int(fields["VmRSS"].split()[0]) * 1024
            threads += int(fields["Threads"])
    return Weight(resident, threads)


def _descendants(pid: int) -> Iterator[int]:
    try:
        children = [
            int(child)
            for task in Path(f"/proc/{pid}/task").iterdir()
            for child in (task / "children").read_text().split()
        ]
    except OSError:
        return
    for child in children:
        yield child
        yield from _descendants(child)


def _noteworthy(runs: list[Run]) -> list[str]:
    seen = {
        f"hung (killed after {LIMIT:g} s)": sum(run.exit_code is None for run in runs),
        "failed": sum(run.exit_code not in (None, 0) for run in runs),
        "left processes running": sum(run.left_running > 0 for run in runs),
    }
    return [f"{what} in {count} of {len(runs)} runs" for what, count in seen.items() if count]


# Reporting.


def _table(rows: list[Row]) -> list[str]:
    base = next(row.sound for row in rows if row.launcher.name == BASE)
    return [HEADING, RULE, *(_line(row, base) for row in rows)]


def _line(row: Row, base: list[Fan | None]) -> str:
    fans = [fan for fan in row.sound if fan]
    seconds = [fan.run.seconds for fan in fans]
    # A ratio within one round: what disturbed the machine then disturbed both.
    ratios = [fan.run.seconds / unit.run.seconds for fan, unit in zip(row.sound, base, strict=False) if fan and unit]
    cells = ["-"] * 8
    if seconds:
        cells[:3] = [f"{value:.2f}" for value in (statistics.median(seconds), min(seconds), max(seconds))]
        cells[4] = f"{statistics.median(fan.client_cpu for fan in fans):.2f}"
        cells[5] = f"{statistics.median(fan.all_cpu for fan in fans):.2f}"
    if ratios:
        cells[3] = f"{statistics.median(ratios):.2f}"
    if row.weight:
        cells[6:] = [f"{row.weight.resident / 2**20:.0f}", str(row.weight.threads)]
    ran = "-" if row.hosts_run is None else f"{row.hosts_run} of {row.job.tasks}"
    return f"| {' | '.join([row.launcher.name, *cells, ran, '; '.join(row.notes)])} |"


def _raw(row: Row) -> dict[str, object]:
    return {
        "client": row.launcher.name,
        "program": row.launcher.program,
        "hosts_run": row.hosts_run,
        "weight": asdict(row.weight) if row.weight else None,
        "notes": row.notes,
        "rounds": [asdict(fan) for fan in row.fans],
    }


if __name__ == "__main__":
    main()
