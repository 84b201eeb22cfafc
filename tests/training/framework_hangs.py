"""Programs of JAX, Keras on JAX, torch and MPI that hang, as those of TensorFlow in hangs.py."""

from training.hangs import Hang

_HEAD = """
import os, signal, sys, threading, time
from pathlib import Path
task, is_first = os.environ["TFLAUNCH_TASK"], os.environ["TFLAUNCH_ATTEMPT"] == "0"
is_culprit = is_first and task == sys.argv[1]
STEPS = 10**6 if is_first else 10
def say():
    print("hangs", flush=True)
"""
_JAX = f"""{_HEAD}
import jax
from jax.experimental import multihost_utils
number = int(os.environ["KERAS_DISTRIBUTION_PROCESS_ID"])
jax.distributed.initialize(os.environ["KERAS_DISTRIBUTION_JOB_ADDRESSES"].split(",")[0], 3, number)
for step in range(STEPS):
    multihost_utils.process_allgather(jax.numpy.ones(1))
    if step == 3 and is_culprit:
        say()
        FAULT
    if step == 3 and is_first:
        BARRIER
"""
_KERAS = f"""{_HEAD}
import keras
import numpy as np
keras.distribution.initialize()
keras.distribution.set_distribution(keras.distribution.DataParallel(auto_shard_dataset=False))
class Reports(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if batch == 30 and is_culprit:
            CALLBACK
def batches():
    for number in range(10**6):
        if number == 30 and is_culprit:
            INPUT
        yield np.ones((24, 4)), np.ones((24, 1))
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
model.fit(batches(), steps_per_epoch=STEPS, callbacks=[Reports()], verbose=0)
"""
_TORCH = f"""{_HEAD}
import torch
import torch.distributed as dist
class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 10
    def __getitem__(self, number):
        time.sleep(3600)
rank, rendezvous = int(task[-1]), f"file://{{os.getcwd()}}/ranks-{{int(is_first)}}"
dist.init_process_group("gloo", init_method=rendezvous, rank=rank, world_size=3)
for step in range(STEPS):
    dist.all_reduce(torch.ones(1))
    if step == 3 and is_culprit:
        say()
        FAULT
    if step == 3 and is_first:
        BARRIER
dist.destroy_process_group()
"""


def _jax(fault: str, says: str, barrier: str = "pass") -> Hang:
    return _hang(_JAX.replace("FAULT", fault).replace("BARRIER", barrier), says, "jax")


def _keras(says: str, callback: str = "pass", data: str = "pass") -> Hang:
    return _hang(_KERAS.replace("CALLBACK", callback).replace("INPUT", data), says, "jax")


def _torch(fault: str, says: str, barrier: str = "pass") -> Hang:
    return _hang(_TORCH.replace("FAULT", fault).replace("BARRIER", barrier), says, "torch", strategy="none")


def _hang(program: str, says: str, framework: str, strategy: str = "jax") -> Hang:
    return Hang(program, ("worker:1",), says, {"worker": 3}, {"strategy": strategy}, needs=(framework,))


HANGS = {
    "JAX: sleep": _jax("time.sleep(3600)  # here", says="sleeps"),
    "JAX: stopped": _jax("os.kill(os.getpid(), signal.SIGSTOP)  # here", says="SIGSTOP"),
    "JAX: barrier that one never enters": _jax(
        "threading.Event().wait()  # here",
        says="; worker:0, worker:2 wait for it",
        barrier="multihost_utils.sync_global_devices('all')",
    ),
    "JAX: uneven data": _jax("break", says="waits in JAX (clean_up)"),
    "Keras on JAX: input": _keras(data="say(); time.sleep(3600)  # here", says="sleeps"),
    "Keras on JAX: callback": _keras(callback="say(); os.mkfifo('fifo'); open('fifo')  # here", says="named pipe"),
    "torch: sleep": _torch("time.sleep(3600)  # here", says="sleeps"),
    "torch: lock": _torch("(lock := threading.Lock()).acquire() and lock.acquire()  # here", says="lock"),
    "torch: barrier that one never enters": _torch(
        "threading.Event().wait()  # here", says="; worker:0, worker:2 wait for it", barrier="dist.barrier()"
    ),
    "torch: other collective": _torch("dist.broadcast(torch.ones(1), 0)  # here", says="waits in torch"),
    "torch: data loader": _torch(
        "next(iter(torch.utils.data.DataLoader(Data(), num_workers=1)))  # here",
        says="; worker:0, worker:2 wait for it",
    ),
}
"""The name of a hang: its program."""
