"""Programs that are silent for long and go on: two tasks that wait for each other in each step, as in a collective.

Times are those of a scale of 100: an hour takes 36 s, 15 minutes 9 s. ``pause`` is what worker 1 does once, between the
steps before and after it, while worker 0 waits; ``start`` is what it does before its first step.
"""

from typing import NamedTuple

_HEAD = """
import json, fcntl, mmap, multiprocessing, os, pdb, signal, socket, subprocess, sys, tempfile, threading, time
from pathlib import Path
from tflaunch_worker.training import progress
directory = Path("files-" + os.environ["TFLAUNCH_RUN"])
directory.mkdir(exist_ok=True)
os.chdir(directory)
config = json.loads(os.environ["TF_CONFIG"])
index, role = config["task"]["index"], config["task"]["type"]
addresses = [(host, int(port)) for host, port in (each.split(":") for each in config["cluster"]["worker"])]

def going_on(seconds, pause):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        yield
        time.sleep(pause)

def compute(seconds):
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass

def serve(seconds):
    listening = socket.create_server(("127.0.0.1", 0))
    def send():
        connection = listening.accept()[0]
        for _ in going_on(seconds, 0.25):
            connection.send(bytes(1024))
        connection.close()
    if not os.fork():
        send()
        os._exit(0)
    return socket.create_connection(listening.getsockname())

def read_all(connection):
    while connection.recv(1 << 16):
        pass

step = 0
def train(steps=5):
    global step
    for _ in range(steps):
        time.sleep(0.1)
        for peer in peers:
            peer.send(b".")
        for peer in peers:
            peer.recv(1)
        step += 1
        progress.report(step, epoch=(step - 1) // 5 + 1, epochs=3, steps_per_epoch=5)
"""
_FORMS = """
listening = socket.create_server(addresses[index], reuse_port=True)
while index:
    try:
        peers = [socket.create_connection(addresses[0])]
        break
    except ConnectionRefusedError:
        time.sleep(0.1)
else:
    peers = [listening.accept()[0] for _ in addresses[1:]]
"""


class Healthy(NamedTuple):
    """What worker 1 does before its first step, between two steps (and worker 0 meanwhile), and after its last one."""

    pause: str = ""
    start: str = ""
    meanwhile: str = ""
    after: str = ""
    evaluator: str = ""
    steps: int = 7
    scale: int = 100

    @property
    def program(self) -> str:
        """Its program."""
        return "\n".join(
            (
                _HEAD,
                f"if role == 'evaluator':\n{_indented(self.evaluator)}",
                _FORMS,
                f"if index == 1:\n{_indented(self.start)}",
                f"train({self.steps})",
                f"if index == 1:\n{_indented(self.pause)}\nelse:\n{_indented(self.meanwhile)}",
                f"train({15 - self.steps})",
                f"if index == 1:\n{_indented(self.after)}\n",
            )
        )


def _indented(text: str) -> str:
    return "\n".join(f"    {line}" for line in (text or "pass").splitlines())


_NOW_AND_THEN = "for _ in going_on(45, 0.95):\n    compute(0.05)"
_SLOW_FILES = """\
import ctypes, struct
def answer(device):
    while True:
        length, kind, number, node, _, _, _, _ = struct.unpack_from("<IIQQIIII", request := os.read(device, 1 << 20))
        attributes = struct.pack("<QQQQQQIIIIIIIIII", node, 1 << 30, 0, 0, 0, 0, 0, 0, 0, 0o100644, 1, 0, 0, 0, 4096, 0)
        body = b""
        if kind == 26:
            body = struct.pack("<IIIIHHI40x", 7, 23, 4096, 0, 12, 9, 4096)
        elif kind == 1:
            body = struct.pack("<QQQQII", 2, 0, 99, 99, 0, 0) + attributes
        elif kind == 3:
            kept = attributes if node > 1 else attributes[:60] + struct.pack("<I", 0o40755) + attributes[64:]
            body = struct.pack("<QII", 99, 0, 0) + kept
        elif kind in (14, 27):
            body = struct.pack("<QII", 1, 0, 0)
        elif kind == 15:
            time.sleep(1)
            body = bytes(struct.unpack_from("<QQI", request, 40)[2])
        if kind not in (2, 36):
            os.write(device, struct.pack("<IiQ", 16 + len(body), 0, number) + body)
libc, device = ctypes.CDLL(None), os.open("/dev/fuse", os.O_RDWR)
assert not libc.unshare(0x20000) and not libc.mount(None, b"/", None, 0x44000, None)
os.mkdir("mount")
options = f"fd={device},rootmode=40000,user_id=0,group_id=0"
assert not libc.mount(b"fuse", b"mount", b"fuse", 0, options.encode())
if not os.fork():
    answer(device)
os.close(device)
"""
HEALTHY = {
    "first compilation": Healthy(start="compute(20)"),
    "evaluation of 30 steps": Healthy(pause="compute(15)"),
    "computes now and then": Healthy(pause=_NOW_AND_THEN),
    "shuffle buffer before the first step": Healthy(start=_NOW_AND_THEN),
    "slow download": Healthy(start="read_all(serve(45))"),
    "slow download between steps": Healthy(pause="read_all(serve(45))"),
    "download by a command": Healthy(start="subprocess.run(['cat'], stdin=serve(45), stdout=subprocess.DEVNULL)"),
    "slow saving": Healthy(
        pause="with open('model', 'wb') as file:\n    for _ in going_on(45, 0.2):\n        file.write(bytes(20_000))"
    ),
    "data of an hour": Healthy(start="for _ in going_on(45, 0.2):\n    Path(sys.executable).open('rb').read(20_000)"),
    "sleep between epochs": Healthy(pause="time.sleep(7)", steps=10),
    "sleep between steps": Healthy(pause="time.sleep(7)"),
    "sleep before the first step": Healthy(start="time.sleep(28)"),
    "polls a service before the first step": Healthy(
        start="""\
service = socket.create_server(("127.0.0.1", 0))
for _ in going_on(28, 0.5):
    with socket.create_connection(service.getsockname()) as connection:
        service.accept()[0].send(b"not yet")
        connection.recv(100)"""
    ),
    "debugger": Healthy(
        pause="""\
ends = os.pipe()
threading.Timer(45, os.write, (ends[1], b"c\\n")).start()
pdb.Pdb(stdin=os.fdopen(ends[0]), stdout=open(os.devnull, "w"), nosigint=True).set_trace()
time.time()"""
    ),
    "stopped and continued": Healthy(
        pause="subprocess.Popen(['sh', '-c', 'sleep 45; kill -CONT $PPID'])\nos.kill(os.getpid(), signal.SIGSTOP)"
    ),
    "slow file system": Healthy(
        pause=f"{_SLOW_FILES}\nwith open('mount/data', 'rb', 0) as file:\n"
        "    for _ in going_on(45, 0):\n        file.read(65536)"
    ),
    "mapped file of a slow file system": Healthy(
        pause=f"{_SLOW_FILES}\nwith open('mount/data', 'rb', 0) as file:\n"
        "    data = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)\n"
        "    for number, _ in enumerate(going_on(45, 0)):\n        data[number << 22]"
    ),
    "thread that polls": Healthy(
        pause="""\
def poll():
    for _ in going_on(20, 0.1):
        Path("stop").exists()
threading.Thread(target=poll).start()
time.sleep(7)"""
    ),
    "thread that writes": Healthy(
        pause="""\
def write():
    for _ in going_on(45, 1):
        print("uploaded", flush=True)
threading.Thread(target=write).start()
time.sleep(45)"""
    ),
    "waits in a loop without a pause": Healthy(pause="compute(25)"),
    "command that works": Healthy(
        pause="subprocess.run([sys.executable, '-c', 'import time\\nfor _ in range(45):\\n"
        "    end = time.process_time() + 0.05\\n    while time.process_time() < end: pass\\n    time.sleep(0.95)'])"
    ),
    "data processes": Healthy(
        pause=f"def load(_):\n    {_NOW_AND_THEN.replace(chr(10), chr(10) + '    ')}\n"
        "with multiprocessing.get_context('fork').Pool(2) as pool:\n    pool.map(load, [1, 2])"
    ),
    "one command after the other": Healthy(pause="for _ in going_on(45, 0):\n    subprocess.run(['sleep', '2'])"),
    "lock of another that loads": Healthy(
        pause="time.sleep(1)\nwith open('lock', 'w') as lock:\n    fcntl.flock(lock, fcntl.LOCK_EX)",
        meanwhile="with open('lock', 'w') as lock:\n    fcntl.flock(lock, fcntl.LOCK_EX)\n    read_all(serve(45))",
    ),
    "file that another makes": Healthy(
        pause="while not Path('vocabulary').exists():\n    time.sleep(1)",
        meanwhile="read_all(serve(45))\nPath('vocabulary').touch()",
    ),
    "slow sender": Healthy(
        pause="""\
there = socket.create_server(("127.0.0.1", 0))
if not os.fork():
    reader = there.accept()[0]
    for _ in going_on(45, 0.25):
        reader.recv(2048)
    os._exit(0)
here = socket.create_connection(there.getsockname())
here.settimeout(60)
for _ in going_on(45, 0.25):
    here.send(bytes(2048))"""
    ),
    "generator with a limited rate": Healthy(
        pause="""\
out, into = os.pipe()
if not os.fork():
    for _ in going_on(45, 0.5):
        os.write(into, bytes(2048))
    os._exit(0)
os.close(into)
while os.read(out, 4096):
    pass"""
    ),
    "slow end": Healthy(after="for _ in going_on(45, 0.2):\n    Path('model').write_bytes(bytes(20_000))"),
    "first one ends early": Healthy(after=_NOW_AND_THEN),
    "evaluator that waits for checkpoints": Healthy(
        pause="time.sleep(7)",
        evaluator="while not Path('end').exists():\n    time.sleep(1)\nsys.exit()",
        after="Path('end').touch()",
    ),
    "evaluator that works": Healthy(
        evaluator="while not Path('score').exists():\n    compute(0.05)\n    time.sleep(0.5)\n"
        "    if Path('model').exists() and time.time() - Path('model').stat().st_mtime > 30:\n"
        "        Path('score').touch()\nsys.exit()",
        pause="Path('model').touch()\nwhile not Path('score').exists():\n    time.sleep(1)",
    ),
    "import of TensorFlow": Healthy(start="import tensorflow"),
    "cache of tf.data": Healthy(
        start="import tensorflow as tf",
        pause="""\
def load():
    for _ in going_on(45, 0.5):
        yield Path(sys.executable).open("rb").read(50_000)
for _ in tf.data.Dataset.from_generator(load, output_signature=tf.TensorSpec((), tf.string)).cache("cache"):
    pass""",
        scale=10,  # after its end TensorFlow may stand still for up to a minute, which has no scale
    ),
    "records of TensorFlow": Healthy(
        start="import tensorflow as tf",
        pause="with tf.io.TFRecordWriter('records') as file:\n"
        "    for _ in going_on(45, 0.5):\n        file.write(bytes(50_000))",
    ),
    "slow import": Healthy(
        start="""\
for number in range(40):
    Path(f"part{number}.py").write_text("import time; time.sleep(1)\\n" + "x = 1\\n" * 5000)
sys.path.insert(0, os.getcwd())
for number in range(40):
    __import__(f"part{number}")"""
    ),
}
"""The name of a healthy program: what it does."""
