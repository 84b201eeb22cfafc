"""Programs whose output shows whether they were forked or started: each must behave the same both ways."""

from typing import NamedTuple


class PreloadCase(NamedTuple):
    """A program: the source of ``prog.py`` and of other files, and the interpreter's arguments."""

    text: str
    argv: tuple[str, ...] = ("prog.py",)
    files: tuple[tuple[str, str], ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    is_shown: bool = True
    """Whether its output is compared, not only its exit."""
    is_forked: bool = True
    """Whether it is forked rather than refused."""


ABOUT_ITSELF = """
import __main__, inspect, sys, threading
print(sys.argv, getattr(sys, "orig_argv", [""])[1:], sys.path, sys.executable, sys.flags, sys.warnoptions)
print({name: repr(value) for name, value in vars(__main__).items() if name not in ("__loader__", "__builtins__")})
print(type(__loader__), getattr(__loader__, "path", ""), getattr(__loader__, "name", ""), __builtins__)
print(threading.current_thread().name)
def here(): pass
print(inspect.getsource(here), here.__module__, here.__code__.co_filename)
"""

ABOUT_THE_PROCESS = """
import os, resource, signal, sys, threading, time
print(os.getsid(0) == os.getpid() == os.getpgid(0) == threading.get_native_id(), os.getcwd(), os.nice(0))
print(os.getpid() == ~(time.pthread_getcpuclockid(threading.get_ident()) >> 3))  # by the C library's note of it
print(sorted(os.listdir("/proc/self/fd")), [os.readlink(f"/proc/self/fd/{n}").partition(":")[0] for n in range(3)])
print([(n, str(signal.getsignal(n))[:30]) for n in sorted(signal.valid_signals())], signal.pthread_sigmask(0, []))
print(resource.getrlimit(resource.RLIMIT_NOFILE), os.umask(0), open("/proc/self/comm").read())
print(open("/proc/self/cmdline").read().split("\\0"), len(os.listdir("/proc/self/task")))
shown = dict(entry.split("=", 1) for entry in open("/proc/self/environ").read().split("\\0") if entry)
print(shown == dict(os.environ), sorted(item for item in os.environ.items() if "TFLAUNCH_" not in item[0]))
print([(s.name, s.encoding, s.errors, s.line_buffering, s.write_through, s.isatty()) for s in (sys.stdout, sys.stderr)])
print(repr(sys.stdin.read()), sys.getrecursionlimit(), sys.getswitchinterval())
status = [line for line in open("/proc/self/status") if line.startswith(("Sig", "Shd", "Threads", "Cpus"))]
print([line for line in status if "SigQ" not in line])
"""

MAKES_GARBAGE = """
import gc, weakref
print(gc.isenabled(), gc.get_threshold(), gc.get_debug(), gc.callbacks, gc.garbage)
class Garbage: pass
marks = []
for n in range(1000):
    cycle = [Garbage()]
    cycle.append(cycle)
    if n == 0:
        marks.append(weakref.ref(cycle[0]))
kept = [[] for n in range(100000)]
print(marks[0]() is None)
"""

DAEMONISES = """
import os, sys, time
reader, writer = os.pipe()
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.write(1, b"the daemon writes\\n")
        os.write(writer, b"x")
        os._exit(0)
    os._exit(0)
os.wait()
os.read(reader, 1)
print("the leader ends", end="")
"""

FINALIZES = """
import atexit, sys, threading, weakref
class Last:
    def __del__(self):
        sys.__stderr__.write("deleted\\n"); sys.__stderr__.flush()
last = Last()
atexit.register(print, "atexit one", flush=True)
atexit.register(print, "atexit two", flush=True)
weakref.finalize(last, print, "finalized", flush=True)
has_spoken = threading.Event()
threading.Thread(target=lambda: (has_spoken.wait(), print("thread", flush=True))).start()
print("main", flush=True)
has_spoken.set()
"""

POOLS = """
import multiprocessing as mp, os, sys
def square(number): return number * number, __name__, sys.argv, os.environ.get("SET")
if __name__ == "__main__":
    os.environ["SET"] = "yes"
    for method in ("fork", "spawn", "forkserver"):
        with mp.get_context(method).Pool(2) as pool:
            print(method, pool.map(square, range(3)))
    print(mp.current_process().name, mp.parent_process(), mp.get_start_method())
"""

SIGNALS = """
import os, signal, sys
def end(number, frame):
    for ignored in (signal.SIGALRM, signal.SIGTERM):  # another one may come before the process has ended
        signal.signal(ignored, signal.SIG_IGN)
    print("heard", number)
    sys.exit(43)
signal.signal(signal.SIGTERM, end)
signal.signal(signal.SIGALRM, lambda *_: os.kill(os.getpid(), signal.SIGTERM))
signal.setitimer(signal.ITIMER_REAL, 0.05, 0.05)  # again, as it may come just before the pause
while True: signal.pause()
"""

FAILS_DEEP = """
import helper
def outer():
    try:
        helper.fail(1)
    except ZeroDivisionError as error:
        raise ValueError("wörter") from error
print("before, without a newline", end="")
outer()
"""

OWN_HOOK = """
import sys, traceback
def hook(kind, error, trace):
    print("hook", kind.__name__, error, [frame.name for frame in traceback.extract_tb(trace)], sys.last_value is error)
sys.excepthook = hook
def f(): raise RuntimeError("x")
f()
"""

IN_THREADS = """
import asyncio, concurrent.futures, logging, threading, warnings
logging.warning("warned"); warnings.warn("a warning"); warnings.warn("old", DeprecationWarning)
with concurrent.futures.ThreadPoolExecutor(2) as pool: print(list(pool.map(str, range(3))))
with concurrent.futures.ProcessPoolExecutor(1) as pool: print(list(pool.map(abs, [-1])))
asyncio.run(asyncio.sleep(0))
def fail(): raise ValueError("in a thread")
thread = threading.Thread(target=fail, name="mine"); thread.start(); thread.join()
class Bad:
    def __del__(self): raise ValueError("in del")
Bad()
"""

STARTS_OTHERS = """
import os, subprocess, sys
print(subprocess.run([sys.executable, "-c", "import os, sys; print(sys.argv, sorted(k for k in os.environ))"],
                     stdout=subprocess.PIPE).stdout.decode().replace("'TFLAUNCH_PRELOAD', ", ""))
sys.stdout.flush()
os.execv(sys.executable, [sys.executable, "helper.py", "again"])
"""

PARSES_FIRST = """
import argparse
parser = argparse.ArgumentParser(description="Train.")
parser.add_argument("--epochs", type=int, default=1)
parser.add_argument("files", nargs="*")
arguments = parser.parse_args()
import json
print(json.dumps(vars(arguments)), parser.prog)
"""

CHANGES_ITS_ENVIRONMENT = """
import os, subprocess, sys
os.environ["DATA"] = "/d"
os.environ.update({"MODE": "a"}, LEVEL="3")
os.environ.setdefault("HOME_OF_IT", "x")
os.environb[b"RAW"] = b"y"
os.putenv("HIDDEN", "z")
os.environ.pop("KEPT", None)
del os.environ["DATA"]
import json
shown = "import os; print([os.environ.get(n) for n in 'DATA MODE LEVEL HOME_OF_IT RAW HIDDEN KEPT'.split()])"
subprocess.run([sys.executable, "-c", shown])
print(json.dumps([os.environ.get("HIDDEN"), os.getenv("MODE")]))
"""

LOGS = """
import logging, sys
logging.basicConfig(stream=sys.stdout, level=logging.INFO, format="%(name)s %(levelname)s %(message)s")
import helper, json, os
log = logging.getLogger(__name__)
log.info("begun"); logging.captureWarnings(True)
import warnings
warnings.warn("an old way", UserWarning)
print(logging.getLogger().handlers == helper.HANDLERS, logging.getLevelName(helper.log.getEffectiveLevel()))
"""

DRAWS = """
import random, secrets, uuid
random.seed(7)
drawn = [random.random(), random.getrandbits(64)]
import json, decimal
random.seed(7)
print(drawn == [random.random(), random.getrandbits(64)], drawn, len({secrets.token_hex(), uuid.uuid4().hex}))
print(decimal.getcontext(), json.JSONEncoder.item_separator)
"""

HANDLES_SIGNALS_FIRST = """
import faulthandler, os, signal, sys, time
seen = []
signal.signal(signal.SIGCHLD, lambda *_: seen.append("child"))
signal.signal(signal.SIGUSR1, lambda *_: seen.append("told"))
signal.signal(signal.SIGPIPE, signal.SIG_IGN)
reader, writer = os.pipe2(os.O_NONBLOCK)
signal.set_wakeup_fd(writer)
faulthandler.register(signal.SIGUSR2, file=sys.stdout, all_threads=False)
import json
os.kill(os.getpid(), signal.SIGUSR1)
if os.fork() == 0: os._exit(0)
os.wait()
while len(seen) < 2: time.sleep(0.01)
print(sorted(seen), sorted(set(os.read(reader, 9))) == sorted((signal.SIGUSR1, signal.SIGCHLD)))
"""

IS_GUARDED = """
import helper
def main(): return helper.who(), __name__, __spec__ and __spec__.name, __package__
if __name__ == "__main__": print(main())
else: print("imported as", __name__)
"""

IS_INTERRUPTED = "import atexit\natexit.register(print, 'end')\nprint('x', end='')\nraise KeyboardInterrupt"

PRELOAD_CASES: dict[str, PreloadCase] = {
    "reads its argv": PreloadCase(ABOUT_ITSELF, ("prog.py", "a b", "--c=d", "")),
    "reads its argv, a module": PreloadCase(ABOUT_ITSELF, ("-m", "prog", "x")),
    "reads its argv, a package": PreloadCase(
        "", ("-u", "-m", "sub.pack", "-m"), (("sub/pack/__main__.py", ABOUT_ITSELF),)
    ),
    "looks at its process": PreloadCase(ABOUT_THE_PROCESS),
    "makes garbage": PreloadCase(MAKES_GARBAGE),
    "daemonises": PreloadCase(DAEMONISES),
    "does things at its end": PreloadCase(FINALIZES),
    "has pools of processes": PreloadCase(POOLS),
    "has handlers of signals": PreloadCase(SIGNALS),
    "kills itself": PreloadCase("import os; print('x', end=''); os.kill(os.getpid(), 15)"),
    "exits without flushing": PreloadCase("import os; print('lost', end=''); os._exit(5)"),
    "fails": PreloadCase(FAILS_DEEP, files=(("helper.py", "def fail(n):\n    return n / 0\n"),)),
    "fails with its own hook": PreloadCase(OWN_HOOK),
    "fails in what it imports": PreloadCase("import helper", files=(("helper.py", "def f(:\n"),), is_forked=False),
    "is interrupted": PreloadCase(IS_INTERRUPTED),
    "crashes": PreloadCase("import os; os.abort()", is_shown=False),
    "warns, and has threads": PreloadCase(IN_THREADS),
    "starts others, and becomes another": PreloadCase(
        STARTS_OTHERS, files=(("helper.py", "import sys; print('became', sys.argv, __name__)"),)
    ),
    "closes its stdout": PreloadCase("import sys, os\nprint('x')\nsys.stdout.flush()\nos.close(1)\nprint('y')"),
    "has another encoding": PreloadCase("# coding: latin-1\nprint(ascii('\xe4'))"),
    "pickles what it defines": PreloadCase(
        "import pickle\nclass A: pass\nprint(type(pickle.loads(pickle.dumps(A()))), A.__module__)"
    ),
    "reads its argv, a text": PreloadCase(
        ABOUT_ITSELF.partition("print(type")[0], ("-c", "import prog, __main__; print(vars(__main__))", "-c")
    ),
    "parses its arguments first": PreloadCase(PARSES_FIRST, ("prog.py", "--epochs", "3", "a", "b")),
    "has a wrong argument": PreloadCase(PARSES_FIRST, ("prog.py", "--epochs", "many")),
    "changes its environment": PreloadCase(CHANGES_ITS_ENVIRONMENT, env=(("KEPT", "1"),)),
    "sets a variable that imports read": PreloadCase(
        "import os\nos.environ['KERAS_BACKEND'] = 'jax'\nimport json\nprint('x')", is_forked=False
    ),
    "logs": PreloadCase(
        LOGS,
        files=(
            ("helper.py", "import logging\nlog = logging.getLogger('own')\nHANDLERS = logging.getLogger().handlers"),
        ),
    ),
    "draws numbers": PreloadCase(DRAWS),
    "handles signals before it imports": PreloadCase(HANDLES_SIGNALS_FIRST),
    "has a guard": PreloadCase(IS_GUARDED, files=(("helper.py", "def who(): return __import__('prog').__name__"),)),
    "imports relatively": PreloadCase(
        "",
        ("-m", "pack.train", "x"),
        (
            ("pack/__init__.py", "NAME = 'pack'"),
            ("pack/train.py", "from . import NAME, data\nfrom .data import rows\nprint(NAME, rows(), data.__name__)"),
            ("pack/data.py", "from .. import pack\ndef rows(): return pack.NAME * 2"),
        ),
    ),
}
PRELOAD_CASES["fails in a module"] = PRELOAD_CASES["fails"]._replace(argv=("-m", "prog"))
