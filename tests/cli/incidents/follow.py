"""A plain program that helps a run, and knows of tflaunch only that `ps --json` has `next_commands`.

It asks about the run that is named, or any, does what is proposed, and asks again until nothing new is. Where `ps` has
no run to tell of, it asks for all.
"""

import json
import subprocess
import sys

ROUNDS = 4
PATIENCE = 300  # seconds for a command


def call(command: list[str]) -> tuple[int, str, str]:
    """Run a command without a terminal; return its exit code and what it wrote."""
    ended = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    return ended.returncode, ended.stdout, ended.stderr


def ask() -> tuple[list[dict[str, object]], str]:
    """Return what is known of the run, or of all runs, and what was said about it."""
    code, out, err = call(["tflaunch", "ps", "--json", *sys.argv[1:]])
    if code == 0:
        return [json.loads(out)], ""
    _, out, _ = call(["tflaunch", "ls", "--json"])
    return json.loads(out), err


def follow() -> dict[str, object]:
    """Follow the proposals; return the first answers, the commands and all that was read."""
    first, said = ask()
    answers, did, read = first, list[list[str]](), [said]
    for _ in range(ROUNDS):
        read += [str(answer["because"]) for answer in answers]
        proposed = [command for answer in answers for command in answer["next_commands"]]  # type: ignore[attr-defined]
        new = [command for command in proposed if command not in did]
        if not new:
            break
        for command in new:
            did.append(command)
            code, out, err = call(command)
            read += [out, err, f"exit code {code}"]
        answers, _ = ask()
    return {"first": first, "last": answers, "did": did, "read": "\n".join(read)}


if __name__ == "__main__":
    print(json.dumps(follow()))
