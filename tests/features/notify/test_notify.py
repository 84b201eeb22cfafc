"""`notify`: the user's command runs exactly once for each occurrence, whatever happens to supervisors."""

from support.launch import Launch

TELL = {"exec": ["sh", "-c", "echo $TFLAUNCH_EVENT $TFLAUNCH_EXIT_CODE >>told; cat"]}
FAIL_ONCE = "test $TFLAUNCH_ATTEMPT = 1 || exit 7"


def told(launch: Launch) -> list[str]:
    file = launch.directory / "told"
    return file.read_text().splitlines() if file.exists() else []


def test_a_restart_and_the_end(launch: Launch) -> None:
    spec = launch.shell(FAIL_ONCE, workers=1, strategy="none", restart={"backoff": [0, 0]}, notify=TELL)
    launch.succeed("up", spec)
    assert told(launch) == ["restarted", "done 0"]
    first, last = (launch.run_directory() / "notify.log").read_text().splitlines()
    assert first == "restart 1 of 3: worker:0 exited with code 7"
    assert last.startswith("done: 1 task, after 1 restart, in ")
    assert [r["name"] for r in launch.journal() if r["kind"] == "notified"] == ["restarted-1", "end"]
