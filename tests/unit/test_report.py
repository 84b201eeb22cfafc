"""A report on a run: everything that helps, nothing that is secret."""

from __future__ import annotations

import io
import json
import os
import tarfile
import time
from pathlib import Path

import pytest

from tflaunch.records import report
from tflaunch.records.report import Curtain, looks_secret

pytestmark = pytest.mark.unit

SECRET = 'päss" w\\rd-4711'
MIB = 2**20


class Run:
    """A run directory without a run."""

    def __init__(self, path: Path) -> None:
        self.path = path / "job-1"
        (self.path / "logs").mkdir(parents=True)
        self.journal("")
        self.plan()

    def plan(self, argv: tuple[str, ...] = ("true",), **env: str) -> None:
        """Write the plan of one task."""
        plan = {"tasks": [{"argv": argv, "env": env}], "sidecars": []}
        (self.path / "plan.json").write_text(json.dumps(plan))

    def journal(self, text: str) -> None:
        """Write the journal."""
        (self.path / "events.jsonl").write_text(text)

    def log(self, data: bytes, name: str = "worker-0.log") -> None:
        """Write a log."""
        (self.path / "logs" / name).write_bytes(data)

    def packed(self, diagnosis: str = "it failed") -> dict[str, bytes]:
        """Return the files of the report."""
        out = io.BytesIO()
        report.pack(self.path, diagnosis, out)
        out.seek(0)
        with tarfile.open(fileobj=out) as archive:
            assert all(entry.isfile() and entry.mode == 0o600 and not entry.uname for entry in archive)
            assert all(entry.name.startswith("job-1-report/") for entry in archive)
            names = [entry.name for entry in archive]
            return {name.partition("/")[2]: self._content(archive, name) for name in names}

    @staticmethod
    def _content(archive: tarfile.TarFile, name: str) -> bytes:
        file = archive.extractfile(name)
        assert file is not None
        return file.read()


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """A run with a plan and an empty journal."""
    return Run(tmp_path)


@pytest.mark.parametrize(
    "name",
    [
        "KEY", "API_KEY", "AWS_SECRET_ACCESS_KEY", "HF_TOKEN", "token", "DB_PASSWORD", "MYSQL_PWD", "PGPASSWORD",
        "GOOGLE_APPLICATION_CREDENTIALS", "BASIC_AUTH", "api-key", "GITHUBTOKEN", "WANDB_API_KEY", "PASSWD_2",
    ],
)  # fmt: skip
def test_names_of_secrets(name: str) -> None:
    """One word of them says so."""
    assert looks_secret(name)


@pytest.mark.parametrize(
    "name",
    [
        "PYTHONHASHSEED", "KEYBOARD", "TF_USE_LEGACY_KERAS", "PWD", "OLDPWD", "TOKENIZERS_PARALLELISM", "PATH", "",
        "XAUTHORITY", "MONKEY", "PASSENGERS", "AUTHOR", "TF_CONFIG", "BYPASS",
    ],
)  # fmt: skip
def test_names_of_others(name: str) -> None:
    """Part of a word says nothing."""
    assert not looks_secret(name)


def test_a_report_holds_all_that_helps(run: Run) -> None:
    """Also what is there under which name."""
    (run.path / "spec.yaml").write_text("cluster: {worker: 1}\n")
    run.journal('{"kind":"plan"}\n')
    run.log(b"hello\n")
    (run.path / "lock").touch()
    files = run.packed()
    assert files["diagnosis.txt"] == b"it failed\n"
    assert files["logs/worker-0.log"] == b"hello\n"
    assert files["events.jsonl"] == b'{"kind":"plan"}\n'
    assert files["spec.yaml"] == b"cluster: {worker: 1}\n"
    assert files["machine.txt"].startswith(b"tflaunch ")
    assert b"\nkernel " in files["machine.txt"]
    assert set(files) == {*files["contents.txt"].decode().partition("\n\n")[0].splitlines(), "contents.txt"}
    assert "lock" not in files


def test_a_secret_is_hidden_wherever_it_stands(run: Run) -> None:
    """As it is, in JSON, in JSON within JSON, in a URL; in every file."""
    run.plan(DB_PASSWORD=SECRET, COLOUR="crimson")
    once = json.dumps(SECRET)
    run.journal(json.dumps({"env": SECRET}) + json.dumps({"env": SECRET}, ensure_ascii=False) + json.dumps(once))
    run.log(f"the {SECRET} and crimson, http://u:p%C3%A4ss%22%20w%5Crd-4711@h\n".encode())
    (run.path / "spec.json").write_text(json.dumps({"env": {"X": SECRET}}))
    files = run.packed(f"it said {SECRET}")
    for name, data in files.items():
        assert b"4711" not in data, name
    assert files["logs/worker-0.log"] == b"the *** and crimson, http://u:***@h\n"
    assert json.loads(files["plan.json"])["tasks"][0]["env"] == {"DB_PASSWORD": "***", "COLOUR": "crimson"}


@pytest.mark.parametrize(
    "argv",
    [
        ("train", "--password", "swordfish"),
        ("train", "--api-token=swordfish"),
        ("train", "-key", "swordfish"),
        ("train", "TOKEN=swordfish"),
        ("sh", "-c", "train --hub-token swordfish"),
        ("sh", "-c", "HF_TOKEN=swordfish train"),
        ("train", "--data", "https://ann:swordfish@host/data"),
    ],
)
def test_secrets_of_a_command(run: Run, argv: tuple[str, ...]) -> None:
    """They are hidden in the plan; those that are words of their own, also elsewhere."""
    run.plan(argv)
    files = run.packed()
    assert b"swordfish" not in files["plan.json"]
    assert json.loads(files["plan.json"])["tasks"][0]["argv"][0] == argv[0]


def test_passwords_in_urls_are_hidden_alone(run: Run) -> None:
    """The rest of the URL helps; so does what looks similar."""
    run.plan(DATABASE="postgres://ann:swordfish@db:5432/x")
    run.log(b"postgres://ann:swordfish@db:5432/x http://h:80/a@b swordfish https://bob:x@h\n")
    files = run.packed()
    assert files["logs/worker-0.log"] == b"postgres://ann:***@db:5432/x http://h:80/a@b *** https://bob:***@h\n"


def test_secrets_of_whoever_asks_are_hidden(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Local tasks inherit them."""
    monkeypatch.setenv("HF_TOKEN", "hf_swordfish")
    run.log(b"using hf_swordfish\n")
    assert run.packed()["logs/worker-0.log"] == b"using ***\n"


def test_harmless_values_stay(run: Run) -> None:
    """Short values stand everywhere; they are hidden where their name stands."""
    run.plan(API_KEY="true", PYTHONHASHSEED="0123456789", TF_USE_LEGACY_KERAS="1")
    run.log(b"it is true: 0123456789\n")
    files = run.packed()
    assert files["logs/worker-0.log"] == b"it is true: 0123456789\n"
    assert json.loads(files["plan.json"])["tasks"][0]["env"]["API_KEY"] == "***"


def test_a_secret_of_many_lines_is_hidden_line_by_line(run: Run) -> None:
    """A log may hold it with something before each line."""
    run.plan(SSH_KEY="-----BEGIN-----\nMIIEabcdef\n-----END-----")
    run.log(b"> -----BEGIN-----\n> MIIEabcdef\n")
    assert run.packed()["logs/worker-0.log"] == b"> ***\n> ***\n"


def test_the_last_4_mib_of_a_log_are_packed_and_that_is_said(run: Run) -> None:
    """From the first whole line on."""
    run.log(b"first\n" + b"0123456789abcde\n" * (MIB // 2) + b"last\n")
    files = run.packed()
    log = files["logs/worker-0.log"]
    assert log.startswith(b"0123456789abcde\n")
    assert log.endswith(b"last\n")
    assert 4 * MIB - 100 < len(log) <= 4 * MIB
    assert b"logs/worker-0.log: the last 4 MiB of 8\n" in files["contents.txt"]


@pytest.mark.parametrize("separator", [b"", b"\n", b" "])
def test_no_half_secret_is_seen_where_pieces_meet(run: Run, separator: bytes) -> None:
    """Neither at the beginning of a log's end nor between the pieces in which it is read."""
    secret = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"
    run.plan(API_KEY=secret.decode())
    run.log((secret + separator) * (6 * MIB // len(secret + separator)) + b"end")
    log = run.packed()["logs/worker-0.log"]
    assert log.endswith(b"***" + separator + b"end")
    assert set(log) <= set(b"* \nend")


def test_pieces_make_no_difference() -> None:
    """However text comes, the same is hidden."""
    text = (b"x" * 5000 + b" hidden-value --token=abc http://a:b@c API_KEY=1 " + b"\xff" * 3000) * 20
    whole = b"".join(Curtain({"hidden-value"}).through([text]))
    assert whole.count(b"***") == 80
    bytewise = [text[:20000], *(text[i : i + 1] for i in range(20000, 20300)), text[20300:]]
    chunks = [text[i : i + 6979] for i in range(0, len(text), 6979)]
    for pieces in (bytewise, chunks, [b"", *chunks, b""]):
        assert b"".join(Curtain({"hidden-value"}).through(pieces)) == whole


def test_what_is_no_file_is_not_followed(run: Run) -> None:
    """A link leads elsewhere, a pipe waits for ever; that they are there is said."""
    (run.path / "logs" / "link.log").symlink_to("/etc/passwd")
    os.mkfifo(run.path / "logs" / "pipe.log")
    (run.path / "plan.json").unlink()
    files = run.packed()
    assert b"logs/link.log: not packed" in files["contents.txt"]
    assert b"logs/pipe.log: not packed, it is no file" in files["contents.txt"]
    assert b"plan.json: not packed, No such file or directory" in files["contents.txt"]
    assert not {"logs/link.log", "logs/pipe.log", "plan.json"} & set(files)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"tasks":[{}]}', '{"tasks":[{"env":[],"argv":1}],"sidecars":[]}'])
def test_a_damaged_plan_is_packed_as_it_is(run: Run, text: str) -> None:
    """It may be what somebody looks for."""
    (run.path / "plan.json").write_text(text)
    assert run.packed()["plan.json"] == text.encode()


def test_no_file_is_replaced_unless_asked(run: Run, tmp_path: Path) -> None:
    """And only the owner may read it."""
    target = tmp_path / "report.tar.gz"
    report.pack(run.path, "", target)
    assert target.stat().st_mode & 0o777 == 0o600
    with pytest.raises(FileExistsError):
        report.pack(run.path, "", target)
    target.write_text("old")
    report.pack(run.path, "", target, replace=True)
    assert tarfile.is_tarfile(target)


def test_a_report_that_fails_leaves_nothing(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half a report would be taken for a whole one."""

    def fail(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(report, "_add_text", fail)
    with pytest.raises(OSError, match="No space"):
        report.pack(run.path, "", tmp_path / "report.tar.gz")
    assert not (tmp_path / "report.tar.gz").exists()


@pytest.mark.parametrize("sign", [b"A", b"A_", b"-", b"--a-", b"://", b"KEY_", b"a b "])
def test_hostile_logs_take_no_time(sign: bytes) -> None:
    """Patterns are bounded."""
    curtain = Curtain({"hidden-value"})
    began = time.process_time()
    assert b"".join(curtain.through([(sign * MIB)[:MIB]]))
    assert time.process_time() - began < 5
