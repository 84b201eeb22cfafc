"""Ports that a spec or another program must name before anything listens there."""

import random
import socket

_LOWEST, _END = 3000, 10000
"""Below the ports that tflaunch and the kernel choose; those of TensorBoard are left out."""
_TENSORBOARD = range(6006, 6106)
_claims: list[socket.socket] = []


def free_ports(count: int) -> list[int]:
    """Return free ports, which no other test is given until this process ends."""
    found: list[int] = []
    while len(found) < count:
        port = random.randrange(_LOWEST, _END)
        if port not in _TENSORBOARD and _claim(port):
            found.append(port)
    return found


def _claim(port: int) -> bool:
    """Claim a port among the tests that run on this machine, if it is free."""
    claim = socket.socket(socket.AF_UNIX)
    try:
        claim.bind(f"\0tflaunch-test-port-{port}")  # without a file; it ends with the process
        with socket.socket(socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET) as probe:
            if probe.family == socket.AF_INET6:
                probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            probe.bind(("", port))
    except OSError:
        claim.close()
        return False
    _claims.append(claim)
    return True
