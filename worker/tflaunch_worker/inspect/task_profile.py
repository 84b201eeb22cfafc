"""Have TensorFlow profile a task: the gRPC server that every task of a cluster has contains a profiler service.

The task itself writes the profile, into the directory in the request, when the time is over. A call that is not needed
any more is ended by another call, not by closing its connection: TensorFlow would then skip collecting what its threads
have recorded, and free what they may still use.

Standard library only, Python >= 3.8: this module runs on hosts.
"""

from __future__ import annotations

import os
import shutil
import socket

from tflaunch_worker import linux
from tflaunch_worker.inspect import grpc_call

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, Sequence

_PROFILE, _TERMINATE = (f"/tensorflow.ProfilerService/{method}" for method in ("Profile", "Terminate"))
_SUFFIX = ".xplane.pb"
_COLLECTING = 120.0  # seconds that the task may need to write what it has recorded
_CONNECTING = 5.0  # seconds
_UNIMPLEMENTED = 12
_HOST_TRACER, _DEVICE_TRACER = 2, 1  # levels, the defaults of TensorFlow's client
_OPTIONS_VERSION = 1


class Server:
    """Where a task listens: on a port of this host, in these namespaces, or with none in those of the agent."""

    def __init__(self, port: int, namespaces: Sequence[int]) -> None:
        self.port = port
        self.namespaces = namespaces

    def call(self, method: str, request: bytes, timeout: float) -> str:
        """Call a method of its profiler; return why that failed, or "". The process changes its namespaces for that."""
        try:
            for namespace in self.namespaces:
                linux.enter_namespace(namespace)
            with socket.create_connection(("127.0.0.1", self.port), _CONNECTING) as connection:
                connection.settimeout(timeout)
                grpc_call.call(connection, method, request, timeout)
        except (ConnectionRefusedError, ConnectionResetError, BrokenPipeError):
            return "TensorFlow does not listen on its port any more"
        except socket.timeout:
            return "its server does not answer"
        except OSError as error:
            return f"its port cannot be reached: {error.strerror or error}"
        except grpc_call.CallFailed as failure:
            if failure.code == _UNIMPLEMENTED:
                return "its server has no profiler"
            if failure.code < 0:
                return "the server on its port is not TensorFlow's"
            return f"TensorFlow's profiler refuses: {failure}"
        return ""


def record(server: Server, seconds: float, directory: str, session: str, name: str) -> Dict[str, str]:
    """Profile a task, in a fork of the agent.

    Args:
        server: the task's.
        seconds: how long it is profiled.
        directory: an empty or missing directory for the profile; it is removed if there is none.
        session: a unique name, by which `stop` ends it.
        name: the name of the file, without its suffix.

    Returns:
        ``path`` of the profile, or ``problem``: why there is none.
    """
    shutil.rmtree(directory, ignore_errors=True)
    problem = server.call(_PROFILE, _request(seconds, directory, session, name), seconds + _COLLECTING)
    path = "" if problem else _find_profile(directory)
    if not path:
        shutil.rmtree(directory, ignore_errors=True)
        return {"problem": problem or "TensorFlow has written no profile"}
    return {"path": path}


def stop(server: Server, session: str) -> str:
    """End a profile early, in a fork of the agent; return why that failed, or ""."""
    return server.call(_TERMINATE, _text(1, session), _CONNECTING)


def _find_profile(directory: str) -> str:
    found = [os.path.join(place, name) for place, _, names in os.walk(directory) for name in names]
    return next((path for path in found if path.endswith(_SUFFIX)), "")


def _request(seconds: float, directory: str, session: str, name: str) -> bytes:
    """Return a serialized ``tensorflow.ProfileRequest``, which old and new versions understand alike."""
    milliseconds = max(int(seconds * 1000), 1)
    options = (
        _integer(1, 1)  # include_dataset_ops
        + _integer(2, _HOST_TRACER)
        + _integer(3, _DEVICE_TRACER)
        + _integer(5, _OPTIONS_VERSION)
        + _integer(7, 1)  # enable_hlo_proto
        + _integer(9, milliseconds)
        + _text(10, directory)
    )
    return (
        _integer(1, milliseconds)
        + _integer(2, 1_000_000)  # max_events
        + _bytes(4, options)
        + _text(5, directory)
        + _text(6, session)  # the name of a directory below it
        + _text(7, name)
    )


def _integer(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _text(field: int, value: str) -> bytes:
    return _bytes(field, os.fsencode(value))


def _bytes(field: int, value: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(value)) + value


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
