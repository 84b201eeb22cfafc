"""A report on a run: it contains all that helps, and no secrets."""

import io
import json
import os
import re
import tarfile
from pathlib import Path

import pytest

from tflaunch.features.report import support_bundle
from tflaunch.features.report.redaction import Redactor
from tflaunch.features.secret_names import looks_secret

SECRET = 'päss" w\\rd-4711'
MIB = 2**20


class Run:
    """A run directory without a process."""

    def __init__(self, path: Path) -> None:
        self.path = path / "job-1"
        (self.path / "logs").mkdir(parents=True)
        (self.path / "events.jsonl").touch()
        self.plan()

    def plan(self, argv: tuple[str, ...] = ("true",), **env: str) -> None:
        """Write the plan of one task."""
        plan = {"tasks": [{"argv": argv, "env": env}], "sidecars": []}
        (self.path / "plan.json").write_text(json.dumps(plan))

    def log(self, data: bytes, name: str = "worker-0.log") -> None:
        (self.path / "logs" / name).write_bytes(data)

    def packed(self, diagnosis: str = "it failed") -> dict[str, bytes]:
        out = io.BytesIO()
        support_bundle.pack(self.path, diagnosis, out, True)
        out.seek(0)
        with tarfile.open(fileobj=out) as archive:
            assert all(entry.isfile() and entry.mode == 0o600 and not entry.uname for entry in archive)
            assert all(entry.name.startswith("job-1-report/") for entry in archive)
            opened = {name.partition("/")[2]: archive.extractfile(name) for name in archive.getnames()}
            return {name: file.read() for name, file in opened.items() if file}


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """A run with a plan and an empty journal."""
    return Run(tmp_path)


def test_a_secret_is_known_by_its_name() -> None:
    secret = """KEY API_KEY AWS_SECRET_ACCESS_KEY HF_TOKEN token DB_PASSWORD MYSQL_PWD PGPASSWORD BASIC_AUTH api-key
        GOOGLE_APPLICATION_CREDENTIALS GITHUBTOKEN WANDB_API_KEY PASSWD_2 GITHUB_PAT JWT SESSIONID ACCOUNTKEY
        AZURE_STORAGE_SAS authToken dbPassword SENTRY_DSN"""
    assert [name for name in secret.split() if not looks_secret(name)] == []
    others = """PYTHONHASHSEED KEYBOARD TF_USE_LEGACY_KERAS PWD OLDPWD TOKENIZERS_PARALLELISM PATH XAUTHORITY MONKEY
        PASSENGERS AUTHOR TF_CONFIG BYPASS PYTHONPATH XDG_SESSION_ID myMonk"""
    assert [name for name in ("", *others.split()) if looks_secret(name)] == []


def test_a_report_holds_all_that_helps(run: Run) -> None:
    (run.path / "spec.yaml").write_text("cluster: {worker: 1}\n")
    (run.path / "events.jsonl").write_text('{"kind":"plan"}\n')
    run.log(b"hello\n")
    (run.path / "lock").touch()
    files = run.packed()
    assert files["diagnosis.txt"] == b"it failed\n"
    assert files["logs/worker-0.log"] == b"hello\n"
    assert files["events.jsonl"] == b'{"kind":"plan"}\n'
    assert files["spec.yaml"] == b"cluster: {worker: 1}\n"
    assert files["machine.txt"].startswith(b"tflaunch ")
    assert b"\nkernel " in files["machine.txt"]
    figures = rb"\ncores [1-9]\d*, physical \S+\nmemory [\d,]{9,} bytes, available [\d,]{7,}\n"
    assert re.search(figures, files["machine.txt"])
    assert set(files) == {*files["contents.txt"].decode().partition("\n\n")[0].splitlines(), "contents.txt"}
    assert "lock" not in files


def test_a_secret_is_hidden_wherever_it_stands(run: Run) -> None:
    """As plain text, in JSON, in JSON within JSON and in a URL; in every file."""
    run.plan(DB_PASSWORD=SECRET, COLOUR="crimson")
    once = json.dumps(SECRET)
    (run.path / "events.jsonl").write_text(
        json.dumps({"env": SECRET}) + json.dumps({"env": SECRET}, ensure_ascii=False) + json.dumps(once)
    )
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
        ("train", "--authToken", "swordfish"),
        ("mysql", "-p", "swordfish"),
        ("train", "TOKEN=swordfish"),
        ("sh", "-c", "train --hub-token swordfish"),
        ("sh", "-c", "HF_TOKEN=swordfish train"),
        ("train", "--data", "https://ann:swordfish@host/data"),
    ],
)
def test_secrets_of_a_command(run: Run, argv: tuple[str, ...]) -> None:
    """They are hidden in the plan; those that are arguments of their own, elsewhere as well."""
    run.plan(argv)
    files = run.packed()
    assert b"swordfish" not in files["plan.json"]
    assert json.loads(files["plan.json"])["tasks"][0]["argv"][0] == argv[0]
    for value in ("1", "8080:80", "/some/path", "0.0.0.0:80"):  # -p of other programs
        run.plan(("ssh", "-p", value))
        assert json.loads(run.packed()["plan.json"])["tasks"][0]["argv"] == ["ssh", "-p", value]


JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N_XgL0n3I9PlFUP0THsR8U"
PEM = "-----BEGIN RSA PRIVATE KEY-----\nMIIEpAIBAAKCAQEA7\nbq+/x==\n-----END RSA PRIVATE KEY-----"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("password=swordfish", "password=***"),
        ("DB password: swordfish, user: ann", "DB password: *** user: ann"),
        ('{"password": "sword, \\"fish", "user": "ann"}', '{"password": "***", "user": "ann"}'),
        ('"{\\"password\\": \\"swordfish\\", 1}"', '"{\\"password\\": \\"***\\", 1}"'),
        ("{'api_key': 'swordfish', 'x': 1}", "{'api_key': '***', 'x': 1}"),
        ("Server=db;Uid=ann;Password=swordfish;Port=1", "Server=db;Uid=ann;Password=***;Port=1"),
        ("AccountName=a;AccountKey=c3dvcmRmaXNo==;EndpointSuffix=x", "AccountName=a;AccountKey=***;EndpointSuffix=x"),
        ("pushed with ghp_" + "a1B2" * 9, "pushed with ***"),
        ("key AKIAIOSFODNN7EXAMPLE, region x", "key ***, region x"),
        ("glpat-a1b2c3d4e5f6g7h8i9j0 of gitlab", "*** of gitlab"),
        ("xoxb-123456789012-1234567890123-abcdefABCDEF123456789012", "***"),
        ("npm_" + "a1B2" * 9 + " of npm", "*** of npm"),
        ("https://hooks.slack.com/services/T012/B345/a1B2c3D4e5F6", "https://hooks.slack.com/services/***"),
        ("sk-ant-api03-" + "a1B2" * 9, "***"),
        (f"session {JWT} begins", "session *** begins"),
        ("Authorization: Bearer swordfish", "Authorization: Bearer ***"),
        ("curl -H 'authorization: Basic YW5uOnN3b3JkZmlzaA=='", "curl -H 'authorization: Basic ***'"),
        ("sent bearer a1b2c3d4e5", "sent bearer ***"),
        ("https://x.core.windows.net/c?sv=1&sig=a%2Fb%3D&se=2", "https://x.core.windows.net/c?sv=1&sig=***&se=2"),
        ("https://s3/x?X-Amz-Signature=abcd&X-Amz-Expires=9", "https://s3/x?X-Amz-Signature=***&X-Amz-Expires=9"),
        ("git clone https://swordfish@github.com/a/b", "git clone https://***@github.com/a/b"),
        (f"{PEM}\nnext", "-----BEGIN RSA PRIVATE KEY-----***-----END RSA PRIVATE KEY-----\nnext"),
        (json.dumps(PEM), '"-----BEGIN RSA PRIVATE KEY-----***-----END RSA PRIVATE KEY-----"'),
        ("train --authToken swordfish --steps 5", "train --authToken *** --steps 5"),
    ],
)
def test_what_programs_print_is_hidden_by_its_place_or_form(text: str, shown: str) -> None:
    """Even if the plan does not contain it; the surrounding text is kept."""
    redactor = Redactor(set())
    assert redactor.redact(text).decode() == shown
    assert redactor.hidden == 1


@pytest.mark.parametrize(
    "text",
    [
        "Epoch 3/10 938/938 ━━━━━━━━━━ 3s 3ms/step - accuracy: 0.9123 - loss: 0.3051 - val_loss: 0.2987",
        "2026-01-31 12:00:00.123456: I tensorflow/core/platform/cpu_feature_guard.cc:210] This TensorFlow binary is",
        "sha256 e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
        "commit 9fceb02d0ae598e95dc970b74767f19372d61af8, blob 1a2b3c4d5e6f7a8b9c0d",
        "block_12_expand_batch_normalization_12 (BatchNormalization) (None, 7, 7, 960) 3840 conv2d_transpose_3[0][0]",
        "tokens: 1234, tokens/s: 5.5, num_tokens=2048, next token: hello, token: 42, pad_token: '<pad>'",
        "key: value, keys: dict_keys(['loss']), kernel_key=3, primary key = id",
        "/home/ann/.local/state/tflaunch/runs/train-20260131-120000-a1b2/logs/worker-0.log",
        "checkpoint saved to gs://bucket/run-7f3a9c/ckpt-12000.data-00000-of-00001 (1.2 GB)",
        'PWD=/home/ann OLDPWD=/tmp pwd: /home/ann TF_CONFIG={"cluster": {"worker": ["h1:2222"]}}',
        "worker:0 exited with code 1: ValueError: password must not be None; password=None secret: null",
        "grpc://10.0.0.5:2222 http://ann.example.org:8080/a@b 8.8.8.8 ssh ann@host -p 22",
        "GPU-1f2e3d4c-5b6a-7988-99aa-bbccddeeff00 uuid 123e4567-e89b-12d3-a456-426614174000",
        "the bearer of bad news signed; session ended; basic usage: see Authorization section",
    ],
)
def test_what_training_prints_stays_readable(text: str) -> None:
    assert Redactor(set()).redact(text).decode() == text


@pytest.mark.parametrize(
    ("env", "log", "shown"),
    [
        (
            {"DATABASE": "postgres://ann:swordfish@db:5432/x"},  # the password alone, but everywhere
            "postgres://ann:swordfish@db:5432/x http://h:80/a@b swordfish https://bob:x@h\n",
            "postgres://ann:***@db:5432/x http://h:80/a@b *** https://bob:***@h\n",
        ),
        ({}, "using hf_swordfish\n", "using ***\n"),  # local tasks inherit the environment of whoever asks
        # Short values are common everywhere, so they are hidden only next to their name.
        ({"API_KEY": "true", "PYTHONHASHSEED": "0123456789", "TF_X": "1"}, "true: 0123456789\n", "true: 0123456789\n"),
        # A log may prefix each line of a secret of many lines.
        ({"SSH_KEY": "-----BEGIN-----\nMIIEabcd\n-----END-----"}, "> -----BEGIN-----\n> MIIEabcd\n", "> ***\n> ***\n"),
    ],
)
def test_values_of_variables_are_hidden(
    run: Run, monkeypatch: pytest.MonkeyPatch, env: dict[str, str], log: str, shown: str
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_swordfish")
    run.plan(("true",), **env)
    run.log(log.encode())
    files = run.packed()
    assert files["logs/worker-0.log"].decode() == shown
    assert json.loads(files["plan.json"])["tasks"][0]["env"].get("API_KEY", "***") == "***"


def test_the_last_4_mib_of_a_log_are_packed_and_that_is_said(run: Run) -> None:
    run.log(b"first\n" + b"0123456789abcde\n" * (MIB // 2) + b"last\n")
    files = run.packed()
    log = files["logs/worker-0.log"]
    assert log.startswith(b"0123456789abcde\n")
    assert log.endswith(b"last\n")
    assert 4 * MIB - 100 < len(log) <= 4 * MIB
    assert b"logs/worker-0.log: the last 4 MiB of 8\n" in files["contents.txt"]


@pytest.mark.parametrize("separator", [b"", b"\n", b" "])
def test_no_half_secret_is_seen_where_a_log_is_cut(run: Run, separator: bytes) -> None:
    secret = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"
    run.plan(API_KEY=secret.decode())
    run.log((secret + separator) * (6 * MIB // len(secret + separator)) + b"end")
    log = run.packed()["logs/worker-0.log"]
    assert log.endswith(b"***" + separator + b"end")
    assert set(log) <= set(b"* \nend")


def test_what_is_no_file_is_not_followed(run: Run) -> None:
    """A link points elsewhere and a pipe would block; the report only lists them."""
    (run.path / "logs" / "link.log").symlink_to("/etc/passwd")
    os.mkfifo(run.path / "logs" / "pipe.log")
    (run.path / "plan.json").unlink()
    files = run.packed()
    assert b"logs/link.log: not packed" in files["contents.txt"]
    assert b"logs/pipe.log: not packed, it is not a regular file" in files["contents.txt"]
    assert b"plan.json: not packed, No such file or directory" in files["contents.txt"]
    assert not {"logs/link.log", "logs/pipe.log", "plan.json"} & set(files)


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "[" * 9000, '{"tasks":[{}]}', '{"tasks":[{"env":[],"argv":1}],"sidecars":[]}']
)
def test_a_damaged_plan_is_packed_as_it_is(run: Run, text: str) -> None:
    (run.path / "plan.json").write_text(text)
    assert run.packed()["plan.json"] == text.encode()


def test_a_report_that_fails_leaves_nothing(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:

    def fail(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tarfile.TarFile, "addfile", fail)
    with pytest.raises(OSError, match="No space"):
        support_bundle.pack_file(run.path, "", tmp_path / "report.tar.gz", False, replace=False)
    assert not (tmp_path / "report.tar.gz").exists()


@pytest.mark.parametrize("sign", [b"A", b"A_", b"-", b"--a-", b"://", b"KEY_", b"a b "])
def test_hostile_logs_take_no_time(sign: bytes) -> None:
    assert Redactor({"hidden-value"}).redact((sign * MIB)[:MIB])  # else this would not end
