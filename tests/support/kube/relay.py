"""Forward connections from a port of this machine to a port in the network namespace of a process.

Usage: relay.py PORT PID TARGET
"""

import ctypes
import os
import socket
import sys
import threading

_CLONE_NEWNET = 0x40000000


def main(port: int, pid: int, target: int) -> None:
    """Serve for as long as the process lives."""
    listener = socket.create_server(("127.0.0.1", port))  # stays in the namespace where it was made
    namespace = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY)
    if ctypes.CDLL(None, use_errno=True).setns(namespace, _CLONE_NEWNET):
        sys.exit(os.strerror(ctypes.get_errno()))
    while True:
        client, _ = listener.accept()
        threading.Thread(target=_serve, args=(client, target), daemon=True).start()


def _serve(client: socket.socket, target: int) -> None:
    try:
        server = socket.create_connection(("127.0.0.1", target), 5)
    except OSError:
        client.close()
        return
    server.settimeout(None)
    back = threading.Thread(target=_pump, args=(server, client), daemon=True)
    back.start()
    _pump(client, server)
    back.join()
    client.close()
    server.close()


def _pump(source: socket.socket, sink: socket.socket) -> None:
    try:
        while data := source.recv(65536):
            sink.sendall(data)
    except OSError:
        pass
    for end, how in ((sink, socket.SHUT_WR), (source, socket.SHUT_RD)):
        try:
            end.shutdown(how)
        except OSError:
            pass  # it is closed already


if __name__ == "__main__":
    main(*map(int, sys.argv[1:4]))
