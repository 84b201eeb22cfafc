"""`secrets` in a spec: tasks get the values, and no file, command line or output of tflaunch has them."""

import hashlib
import json
import os
from contextlib import suppress
from pathlib import Path

import pytest

from support.launch import PATIENCE, Launch, read_until
from support.processes import command_of
from support.rendering import node_of_slurm

VALUE, OF_FILE = "s3cret-of-a-variable", "s3cret in\n two lines of a file"
SECRETS = {"API_KEY": {"env": "LAUNCHER_KEY"}, "TOKEN": {"file": "token"}}
DIGEST = hashlib.sha256(f"{VALUE}+{OF_FILE}+unset".encode()).hexdigest()
PRINT_DIGEST = 'printf %s "$API_KEY+$TOKEN+${LAUNCHER_KEY-unset}" | sha256sum'
WAIT = "until test -e go$TFLAUNCH_ATTEMPT; do sleep 0.05; done"
RESTART = {"backoff": [0, 0]}


@pytest.fixture
def secret(launch: Launch) -> Launch:
    """A launch whose environment and directory have the values of `SECRETS`."""
    launch.env["LAUNCHER_KEY"] = VALUE
    (launch.directory / "token").write_text(f"{OF_FILE}\n")
    return launch


def leaks(launch: Launch) -> list[str]:
    """Return the files below the home, and the processes, that show a value; programs and tests know them, too."""
    values = [value.encode() for value in (VALUE, *OF_FILE.splitlines())]
    shown = {str(process): "\0".join(command_of(process)).encode() for process in launch.survivors()}
    for directory, _, names in os.walk(launch.home):  # not disturbed by files that are removed
        for path in (Path(directory, name) for name in names):
            with suppress(FileNotFoundError):
                if path.is_file():
                    shown[str(path)] = path.read_bytes()
    return [place for place, data in shown.items() if any(value in data for value in values)]


def test_tasks_get_values_that_nothing_else_shows(secret: Launch) -> None:
    """At the start, after a restart, and in a sidecar; the supervisor of `up -d` has read them before it was forked."""
    script = f"{PRINT_DIGEST}; {WAIT}; [ $TFLAUNCH_ATTEMPT = 1 ]"
    sidecars = {"side": {"command": ["sh", "-c", PRINT_DIGEST]}}
    spec = secret.shell(script, secrets=SECRETS, sidecars=sidecars, strategy="none", restart=RESTART)
    run = secret.detach(spec)
    secret.wait_for_log("worker:0", DIGEST)
    assert len(secret.survivors()) >= 5
    assert not leaks(secret)
    (secret.directory / "go0").touch()
    secret.wait_for_log("worker:1", DIGEST, 2)
    shown = [secret.run(*how, run) for how in (("ps", "--json"), ("events", "--json"), ("report", "--logs", "--show"))]
    assert not leaks(secret)
    (secret.directory / "go1").touch()
    assert secret.run("wait", run).returncode == 0
    assert DIGEST in secret.log("side")
    assert not leaks(secret)
    shown += [secret.run("plan", "--json", spec), secret.run("plan", spec)]
    for command in shown:
        assert command.returncode == 0, command.stderr
        assert VALUE not in command.stdout + command.stderr
        assert "two lines" not in command.stdout + command.stderr
    assert json.loads(shown[-2].stdout)["secrets"]["TOKEN"] == {"env": None, "file": str(secret.directory / "token")}
    assert "secret   API_KEY from LAUNCHER_KEY" in shown[-1].stdout


def test_what_is_not_there_is_said_before_anything_starts(secret: Launch) -> None:
    del secret.env["LAUNCHER_KEY"]
    (secret.directory / "token").write_text("\n")
    spec = secret.shell("true", secrets={**SECRETS, "OTHER": {"file": "other"}}, strategy="none")
    refused = secret.up(spec)
    directory = secret.directory
    assert (refused.returncode, refused.stderr.splitlines()) == (
        2,
        [
            "tflaunch: secrets.API_KEY: variable 'LAUNCHER_KEY' is not set; export it where tflaunch is started",
            f"secrets.TOKEN: {directory}/token is empty; write the value into that file",
            f"secrets.OTHER: {directory}/other: No such file or directory; write the value into that file",
        ],
    )
    assert not (secret.home / "runs").exists()
    examined = secret.run("doctor", spec, code=3)
    assert "\nsecrets      error\n  secrets.API_KEY: variable 'LAUNCHER_KEY' is not set; export it" in examined.stdout


def test_a_resumed_run_reads_them_again(secret: Launch) -> None:
    """Where one is missing then, living tasks go on, and one that would start without it fails with the reason."""
    script = f"{PRINT_DIGEST}; {WAIT}; exit 7"
    timeouts = {"lease": PATIENCE, "grace": 0.2}
    spec = secret.shell(script, 1, secrets=SECRETS, strategy="none", restart=RESTART, timeouts=timeouts)
    started = secret.start("up", spec, until=DIGEST)
    started.kill()
    started.communicate(timeout=PATIENCE)
    run = secret.run_directory().name
    resumed = secret.start("up", "--resume", run)
    (secret.directory / "go0").touch()
    read_until(resumed, DIGEST)
    resumed.kill()
    resumed.communicate(timeout=PATIENCE)
    (secret.directory / "go1").touch()
    del secret.env["LAUNCHER_KEY"]
    ended = secret.run("up", "--resume", run, code=126)
    assert ended.stderr.startswith(
        "tflaunch: warning: secrets.API_KEY: variable 'LAUNCHER_KEY' is not set; export it where tflaunch is started;"
        " tasks go on, and fail if they are restarted\n"
    )
    assert "secrets could not be read when the run was resumed: API_KEY" in ended.stderr


def test_commands_of_env_read_them_in_the_shell(secret: Launch) -> None:
    """`env` prints references, by which a shell finds the same values."""
    spec = secret.spec(cluster={"worker": ["localhost:12345"]}, command=["true"], secrets=SECRETS)
    printed = secret.run("env", spec, "worker:0").stdout
    assert VALUE not in printed
    done = secret.paste(f"{printed}\n{PRINT_DIGEST}")
    assert DIGEST in done.stdout


def test_a_rendered_script_reads_them_where_it_runs(secret: Launch, tmp_path: Path) -> None:
    spec = secret.shell(PRINT_DIGEST, secrets=SECRETS, strategy="none")
    rendered = secret.succeed("render", "--to", "slurm", spec)
    assert VALUE not in rendered.stdout
    secret.env.update(node_of_slurm(tmp_path, secret.env["PATH"]))
    done = secret.paste(rendered.stdout)
    assert done.stdout.count(DIGEST) == 2, done.stderr
    del secret.env["LAUNCHER_KEY"]
    refused = secret.paste(rendered.stdout)
    assert refused.returncode != 0
    assert not refused.stdout
    assert "LAUNCHER_KEY: a secret of the spec is read from it" in refused.stderr
