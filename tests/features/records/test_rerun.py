"""`rerun` and `diff`: run an earlier plan again, and see what was different."""

import json

from support.launch import Launch


def test_a_rerun_has_the_same_plan(launch: Launch) -> None:
    """Byte by byte, though the spec's file has changed; other changes are reported."""
    program = launch.directory / "train.sh"
    program.write_text("echo one\n")
    spec = launch.spec("mine.json", cluster={"worker": 2}, strategy="none", command=["sh", "train.sh"])
    launch.succeed("up", spec, "--set", "env.SEED=7")
    first = launch.run_directory()
    spec.write_text("{}")
    program.write_text("echo two; exit 4\n")
    ended = launch.run("rerun", first.name, "--log-dir", launch.directory / "again", code=4)
    assert f"tflaunch: differs from {first.name}: code: programs.train.sh: " in ended.stderr
    assert "two" in ended.stdout
    (second,) = (path for path in first.parent.iterdir() if path != first)
    assert (second / "plan.json").read_bytes() == (first / "plan.json").read_bytes()
    assert (second / "spec.json").read_bytes() == (first / "spec.json").read_bytes()
    known = json.loads((second / "record.json").read_text())
    assert known["machine"]["cores"] >= 1

    compared = launch.run("diff", first.name, second.name, code=1)
    said = compared.stdout.splitlines()
    assert "results: exit code: 0 -> 4" in said
    assert {line.split(":")[0] for line in said} == {"code", "results"}
    same = launch.run("diff", first.name, first.name, "--json")
    assert (same.returncode, json.loads(same.stdout)) == (0, [])

    assert launch.run("diff").stdout == launch.run("diff", second.name).stdout == compared.stdout
    alone = launch.run("diff", first.name, code=2)
    assert alone.stderr == f"tflaunch: {first.name} is the first run of mine: name another one\n"
    again = launch.run("rerun", code=4)
    assert again.stderr.startswith(f"tflaunch: as {second.name}\n")


def test_a_private_network_of_several_hosts_is_not_repeated(launch: Launch) -> None:
    hosts = ["localhost", "127.0.0.1"]
    spec = launch.spec(cluster={"worker": hosts}, strategy="none", command=["sh", "-c", "echo one"])
    launch.succeed("up", spec)
    directory = launch.run_directory()
    records = launch.journal()
    records[0]["plan"]["network"] = "private"
    for number, task in enumerate(records[0]["plan"]["tasks"], 1):
        task["address"] = f"127.90.0.{number}:auto"
    (directory / "events.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    again = launch.run("rerun", directory.name, code=2)
    assert f"{directory.name} had a private network of several hosts, which this version does not make" in again.stderr
