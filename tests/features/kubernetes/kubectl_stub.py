"""A stand-in for kubectl and its cluster: pods are processes of this machine, without any isolation.

It has what `up -d --on kubernetes` uses: StatefulSets, Jobs, and commands in pods. Its state is in $KUBECTL_STUB.
"""

import base64
import fcntl
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path
from typing import Any

LOOKS, PAUSE = 600, 0.05  # of 30 seconds
STATE = Path(os.environ.get("KUBECTL_STUB", ""))
KINDS = {"job": "Job", "pod": "Pod", "service": "Service", "statefulset": "StatefulSet", "event": "Event"}


def main(arguments: list[str]) -> int:
    arguments = [word for word in arguments if not word.startswith(("--context=", "--namespace="))]
    verb, *rest = arguments
    if verb == "exec":
        return execute(rest)
    with (STATE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return {"config": config, "create": create, "get": get, "patch": patch, "delete": delete}.get(verb, fail)(rest)


def fail(_: list[str]) -> int:
    return 1


def config(_: list[str]) -> int:
    print(json.dumps({"contexts": [{"name": "stub", "context": {"namespace": "default"}}]}))
    return 0


def path_of(kind: str, name: str) -> Path:
    return STATE / "objects" / f"{kind}.{name}.json"


def create(_: list[str]) -> int:
    """Make objects, and the pods of StatefulSets."""
    given = json.load(sys.stdin)
    for thing in given["items"] if given["kind"] == "List" else [given]:
        if path_of(thing["kind"], thing["metadata"]["name"]).exists():
            print("Error from server (AlreadyExists): it exists", file=sys.stderr)
            return 1
        thing["metadata"]["uid"] = str(uuid.uuid4())
        store(thing)
        if thing["kind"] == "StatefulSet":
            for index in range(thing["spec"]["replicas"]):
                make_pod(thing, f"{thing['metadata']['name']}-{index}")
    print(json.dumps(given))
    return 0


def store(thing: dict[str, Any]) -> None:
    path = path_of(thing["kind"], thing["metadata"]["name"])
    path.parent.mkdir(exist_ok=True)
    written = path.with_name(f".{path.name}.{os.getpid()}")
    written.write_text(json.dumps(thing))
    written.replace(path)  # others read it at any time


def make_pod(owner: dict[str, Any], name: str) -> None:
    template = owner["spec"]["template"]
    container = template["spec"]["containers"][0]
    place = STATE / "pods" / f"{name}-{uuid.uuid4().hex[:6]}"
    place.mkdir(parents=True)
    root = place if owner["kind"] != "Job" else STATE / "root" / owner["metadata"]["name"]  # paths stay the same
    volumes = {volume["name"]: volume for volume in template["spec"].get("volumes", [])}
    env = {"HOME": str(place)}
    for item in container.get("env", []):
        env[item["name"]] = str(root) + item["value"] if item["value"].startswith("/") else item["value"]
    for mount in container.get("volumeMounts", []):
        directory = root / mount["mountPath"].strip("/")
        directory.mkdir(parents=True, exist_ok=True)
        for source in volumes[mount["name"]].get("projected", {}).get("sources", []):
            secret = json.loads(path_of("Secret", source["secret"]["name"]).read_text())
            for item in source["secret"]["items"]:
                (directory / item["path"]).write_bytes(base64.b64decode(secret["data"][item["key"]]))
    (root / "proc/1/fd").mkdir(parents=True, exist_ok=True)
    (root / "proc/1/fd/1").unlink(missing_ok=True)
    (root / "proc/1/fd/1").symlink_to(place / "log")
    labels = dict(template["metadata"]["labels"])
    labels |= {"job-name": owner["metadata"]["name"]} if owner["kind"] == "Job" else {}
    with (place / "log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, __file__, "run-container", str(place), *container["command"]],
            env=env_of(env), stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
        )  # fmt: skip
    stamp = f"{time.time():.6f}"  # clock: as Kubernetes has it
    about = {"name": name, "uid": str(uuid.uuid4()), "labels": labels, "creationTimestamp": stamp}
    about["owner"] = [owner["kind"], owner["metadata"]["name"]]
    store({"kind": "Pod", "metadata": about, "place": str(place), "pid": process.pid, "env": env})


def env_of(own: dict[str, str]) -> dict[str, str]:
    """Return the environment in a pod: its own, and what the stand-in needs."""
    return {**{name: os.environ[name] for name in ("PATH", "KUBECTL_STUB")}, **own}


def run_container(place: Path, command: list[str]) -> int:
    """Run the process of a pod as its child, pass TERM on, and leave its exit code."""
    process = subprocess.Popen(command)
    signal.signal(signal.SIGTERM, lambda *_: process.terminate())
    code = process.wait()
    (place / "exit").write_text(str(code if code >= 0 else 128 - code))
    return 0


def with_status(pod: dict[str, Any]) -> dict[str, Any]:
    end = Path(pod["place"]) / "exit"
    code = int(end.read_text()) if end.exists() else None
    container: dict[str, Any] = {"name": "tensorflow", "containerID": pod["metadata"]["uid"], "state": {"running": {}}}
    if code is not None:
        container["state"] = {"terminated": {"exitCode": code}}
    phase = "Running" if code is None else "Failed" if code else "Succeeded"
    conditions = [{"type": "PodScheduled", "status": "True"}]
    return {**pod, "status": {"phase": phase, "conditions": conditions, "containerStatuses": [container]}}


def all_objects() -> list[dict[str, Any]]:
    """Return all objects; makes the pods that a Job should have."""
    found = [json.loads(path.read_text()) for path in sorted((STATE / "objects").glob("*.json"))]
    pods = [with_status(thing) for thing in found if thing["kind"] == "Pod"]
    things = [thing for thing in found if thing["kind"] != "Pod"] + pods
    for job in [thing for thing in things if thing["kind"] == "Job"]:
        own = [pod["status"]["phase"] for pod in pods if pod["metadata"]["owner"] == ["Job", job["metadata"]["name"]]]
        ends = {"Complete": "Succeeded" in own, "Failed": own.count("Failed") > job["spec"]["backoffLimit"]}
        job["status"] = {"conditions": [{"type": name, "status": "True"} for name, is_so in ends.items() if is_so]}
        if job["spec"]["parallelism"] and not any(ends.values()) and "Running" not in own:
            make_pod(job, f"{job['metadata']['name']}-{uuid.uuid4().hex[:5]}")
    return things


def selected(rest: list[str]) -> list[dict[str, Any]]:
    words = [word for word in rest if not word.startswith("-")]
    kinds = [KINDS[word.partition(".")[0].removesuffix("s")] for word in words[0].split(",")]
    label = next((word.removeprefix("--selector=") for word in rest if word.startswith("--selector=")), "")
    name, _, value = label.partition("=")
    return [
        thing
        for thing in all_objects()
        if thing["kind"] in kinds
        and (not words[1:] or thing["metadata"]["name"] in words[1:])
        and (not label or thing["metadata"].get("labels", {}).get(name) == value)
    ]


def get(rest: list[str]) -> int:
    found = selected(rest)
    is_named = len([word for word in rest if not word.startswith("-")]) == 2
    print(json.dumps(found[0] if is_named and found else {"kind": "List", "items": found}))
    return 0


def patch(rest: list[str]) -> int:
    change = next(word.removeprefix("--patch=") for word in rest if word.startswith("--patch="))
    for thing in selected(rest):
        thing["spec"].update(json.loads(change).get("spec", {}))
        annotations = json.loads(change).get("metadata", {}).get("annotations", {})
        thing["metadata"].setdefault("annotations", {}).update(annotations)
        store(thing)
    all_objects()
    return 0


def delete(rest: list[str]) -> int:
    """Delete objects with what they own: all others, in the case of a Job."""
    for thing in selected(rest):
        kind, name = thing["kind"], thing["metadata"]["name"]
        path_of(kind, name).unlink()
        if kind == "Pod":
            end(thing)
        for path in (STATE / "objects").glob("*.json") if kind in ("Job", "StatefulSet") else []:
            other = json.loads(path.read_text())
            if kind == "Job" or other["metadata"].get("owner") == [kind, name]:
                path.unlink()
                if other["kind"] == "Pod":
                    end(other)
    all_objects()
    return 0


def end(pod: dict[str, Any]) -> None:
    """Send TERM to the process of a pod, and wait for its end."""
    if (Path(pod["place"]) / "exit").exists():
        return  # another process may have its pid now
    try:
        os.kill(pod["pid"], signal.SIGTERM)
    except ProcessLookupError:
        return
    for _ in range(LOOKS):
        if (Path(pod["place"]) / "exit").exists():
            return
        time.sleep(PAUSE)  # clock: the grace of a pod


def execute(rest: list[str]) -> int:
    end_of_options = rest.index("--")
    name = next(word for word in rest[:end_of_options] if not word.startswith("-"))
    path = path_of("Pod", name)
    if not path.exists():
        print(f'Error from server (NotFound): pods "{name}" not found', file=sys.stderr)
        return 1
    pod = json.loads(path.read_text())
    code = subprocess.call(rest[end_of_options + 1 :], env=env_of(pod["env"]))
    if code:
        print(f"command terminated with exit code {code}", file=sys.stderr)
    return code


if __name__ == "__main__":
    if sys.argv[1] == "run-container":
        sys.exit(run_container(Path(sys.argv[2]), sys.argv[3:]))
    sys.exit(main(sys.argv[1:]))
