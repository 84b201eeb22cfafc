"""A task that can be profiled without TensorFlow: it serves the profiler's two methods on its port, and runs Python."""

from __future__ import annotations

from pathlib import Path

PROGRAM = """
import json, os, socket, struct, sys, threading, time
PROFILE = open(sys.argv[1], "rb").read()
config = json.loads(os.environ["TF_CONFIG"])
task = config["task"]
port = int(config["cluster"][task["type"]][task["index"]].rpartition(":")[2])
stopped = threading.Event()

def frame(kind, payload=b"", flags=0, stream=1):
    return len(payload).to_bytes(3, "big") + struct.pack("!BBI", kind, flags, stream) + payload

def number(data, at):
    value = shift = 0
    while True:
        value |= (data[at] & 127) << shift
        at, shift = at + 1, shift + 7
        if data[at - 1] < 128:
            return value, at

def message(data):
    found, at = {}, 0
    while at < len(data):
        tag, at = number(data, at)
        value, at = number(data, at)
        if tag & 7 == 2:
            value, at = data[at:at + value], at + value
        found[tag >> 3] = value
    return found

def serve(connection):
    received = b""
    while True:
        received += connection.recv(65536)
        at, body, method = 24, None, b""
        while at + 9 <= len(received):
            size, kind = int.from_bytes(received[at:at + 3], "big"), received[at + 3]
            payload = received[at + 9:at + 9 + size]
            if kind == 1:
                method = payload
            if kind == 0 and len(payload) == size:
                body = payload[5:]
            at += 9 + size
        if body is not None:
            break
    about = message(body)
    if b"/Terminate" in method:
        print("told to stop", flush=True)
        stopped.set()  # only now: two threads that print at the same time may share a line
        problem = b""
    elif task["index"] == 2:
        problem = b"Another profiling session active."
    else:
        print("profiling", flush=True)
        ended_early = stopped.wait(about[1] / 1000)
        place = os.path.join(about[5].decode(), about[6].decode())
        os.makedirs(place)
        with open(os.path.join(place, about[7].decode() + ".xplane.pb"), "wb") as file:
            file.write(PROFILE)
        print("has written", flush=True)
        problem = b""
    def header(name, value):
        return bytes((0, len(name))) + name + bytes((len(value),)) + value
    trailers = header(b"grpc-status", b"13" if problem else b"0") + header(b"grpc-message", problem)
    connection.sendall(frame(4, stream=0) + frame(1, b"\\x88", 4) + frame(0, bytes(5)) + frame(1, trailers, 5))
    connection.recv(65536)
    connection.close()

def listen():
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    listener.bind(("", port))
    listener.listen(8)
    while True:
        threading.Thread(target=serve, args=listener.accept()[:1], daemon=True).start()

def train():
    while True:
        sum(range(1000))

if task["index"] != 3:
    threading.Thread(target=listen, daemon=True).start()
if task["type"] != "evaluator":
    train()
time.sleep(10**6)
"""
"""Worker 2 refuses to be profiled, and worker 3 never opens its port."""


def write_program(directory: Path, profile: bytes) -> list[str]:
    """Write the program and the profile that it returns; return its command, without the interpreter."""
    (directory / "train.py").write_text(PROGRAM)
    (directory / "profile.pb").write_bytes(profile)
    return [str(directory / "train.py"), str(directory / "profile.pb")]
