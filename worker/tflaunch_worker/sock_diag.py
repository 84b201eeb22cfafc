"""Ask the kernel about TCP sockets: sock_diag(7), over netlink.

Standard library only, Python >= 3.8: this module runs on hosts.
"""

from __future__ import annotations

import socket
import struct

from tflaunch_worker import netlink

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Iterator

PROTOCOL = 4  # NETLINK_SOCK_DIAG
_BY_FAMILY = 20  # SOCK_DIAG_BY_FAMILY, the type of a question
ESTABLISHED, LISTENING = 1, 10  # TCP_ESTABLISHED and TCP_LISTEN in the kernel's numbering of states
INFO = 2  # INET_DIAG_INFO, the attribute that holds struct tcp_info
_QUESTION = struct.Struct("=BBBxI48x")  # struct inet_diag_req_v2: family, protocol, extensions, states


def sockets(family: int, state: int, with_info: bool = False) -> Iterator[bytes]:
    """Yield a struct inet_diag_msg for each socket of this network namespace in a state, with its attributes.

    Raises:
        OSError: the kernel or its permissions do not allow it.
    """
    extensions = 1 << (INFO - 1) if with_info else 0
    return netlink.dump(PROTOCOL, _BY_FAMILY, _QUESTION.pack(family, socket.IPPROTO_TCP, extensions, 1 << state))
