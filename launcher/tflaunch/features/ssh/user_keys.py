"""Load the user's keys, from the ssh-agent and files, in the order of OpenSSH."""

import base64
import binascii
import copy
import io
import os
import shlex
import socket
import stat
import struct
import threading
import warnings
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Any, NamedTuple

import paramiko
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey

from tflaunch.features.ssh.ssh_config import Target
from tflaunch.transport.base import LinkError
from tflaunch_worker import linux, procfs

MAX_BYTES = 1024 * 1024

_LISTED = 12  # the agent protocol's reply with a list of keys
_LIST_PATIENCE = 3.0
_SIGN_PATIENCE = 60.0  # the user may have to confirm
_MAGIC = b"openssh-key-v1\0"
_ENCRYPTED = "is encrypted and not in the ssh-agent"


class Offer(NamedTuple):
    """A key to log in with, and its name for messages."""

    name: str
    key: paramiko.PKey


class AgentKey(paramiko.PKey):
    """A key held by the ssh-agent.

    Unlike paramiko's, it can be shared by threads, as every signature uses its own connection, and a refusal leaves
    the connection to the host open, so that another key can be tried.
    """

    def __init__(self, path: str, blob: bytes) -> None:
        """Describe a public key or certificate in the list of the agent at a socket."""
        super().__init__()
        self.public_blob: paramiko.pkey.PublicBlob | None = None
        self.is_refused = False
        self.blob = blob
        self._path = path

    def get_name(self) -> str:
        """Return the kind of the key."""
        return paramiko.Message(self.blob).get_binary().decode(errors="replace")

    def asbytes(self) -> bytes:
        """Return the public key."""
        return self.blob

    def sign_ssh_data(self, data: bytes, algorithm: str | None = None) -> paramiko.Message:
        """Return the agent's signature, or an empty one if it refuses."""
        self.is_refused = False
        try:
            with closing(_Agent(self._path, _SIGN_PATIENCE)) as agent:
                signer: Any = paramiko.AgentKey(agent, self.blob)
                signer.inner_key = None  # it signs as its certificate, for an agent without the bare key
                return paramiko.Message(signer.sign_ssh_data(data, algorithm))
        except Exception:  # noqa: BLE001 (paramiko raises arbitrary errors when the peer is not an agent)
            self.is_refused = True
            return paramiko.Message()


class _Agent(paramiko.Agent):
    """An ssh-agent at any socket, with timeouts and checks that paramiko's lacks."""

    def __init__(self, path: str, patience: float) -> None:
        """Connect and list the keys; `patience` is the timeout for each step, in seconds."""
        super(paramiko.Agent, self).__init__()  # not Agent's own, which connects to SSH_AUTH_SOCK without a limit
        seconds, parts = divmod(int(max(patience, 0.001) * 1_000_000), 1_000_000)
        limit = struct.pack("ll", seconds, parts)
        connection = socket.socket(socket.AF_UNIX)
        try:
            # With Python's own timeout a connection would fail at once when many threads connect together.
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
            connection.connect(path)
            self._connect(connection)  # type: ignore[attr-defined]
        except BaseException:
            connection.close()
            raise

    def _send_message(self, message: bytes | paramiko.Message) -> tuple[int, paramiko.Message]:
        kind, answer = super()._send_message(message)  # type: ignore[misc]
        raw = answer.asbytes()
        if kind == _LISTED and int.from_bytes(raw[1:5], "big") * 8 > len(raw):
            raise paramiko.SSHException("the list is shorter than it says")
        return kind, answer

    def _read_all(self, wanted: int) -> bytes:
        if wanted > MAX_BYTES:
            raise paramiko.SSHException("the answer is too long")
        return bytes(super()._read_all(wanted))  # type: ignore[misc]


def agent_keys(path: str | None, patience: float) -> list[AgentKey]:
    """Return the keys of the ssh-agent at a socket; none without an answer in time."""
    if path is None:
        return []
    try:
        with closing(_Agent(path, min(patience, _LIST_PATIENCE))) as agent:
            return [AgentKey(path, key.blob) for key in agent.get_keys() if key.blob]
    except Exception:  # noqa: BLE001 (as above)
        return []


def is_forwarded(path: str | None) -> bool:
    """Return whether sshd listens at an ssh-agent's socket: it is another machine's."""
    if path is None:
        return False
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(path)
            pid, _ = linux.peer_of(connection)
    except OSError:
        return False
    return (procfs.read(f"/proc/{pid}/comm") or "").startswith("sshd")


class _File(NamedTuple):
    """A private key file: its public half, and the keys to try or why there are none."""

    public: bytes | None = None
    offers: tuple[Offer, ...] = ()
    problem: str = ""
    remedy: str = ""


class Keys:
    """The user's keys. Each usable file is read once for all hosts and threads."""

    def __init__(self) -> None:
        self._files: dict[str, _File] = {}
        self._lock = threading.Lock()

    def offers(self, target: Target, patience: float) -> tuple[list[Offer], list[str]]:
        """Return keys to try and other files' problems; the agent has ``patience`` s.

        Raises:
            LinkError: the key named in the spec cannot be used.
        """
        of_agent = {key.blob: key for key in agent_keys(target.agent, patience) if key.get_name() != "ssh-dss"}
        files = {path: self._file(path) for path in target.identity_files}
        first: list[Offer] = []
        last: list[Offer] = []
        problems: list[str] = []
        seen: set[bytes | None] = set()
        for index, (path, file) in enumerate(files.items()):
            if file.public in seen:
                continue  # a copy
            seen.update([file.public] if file.public is not None else [])
            key = of_agent.pop(file.public, None) if file.public is not None else None
            offers = [*_certified(path, key), _agent_offer(key)] if key is not None else [*file.offers]
            is_required = index == 0 and target.is_identity_required
            # The key in an encrypted file cannot always be identified; then it may be any of the agent's.
            if is_required and not offers and not (file.public is None and file.problem == _ENCRYPTED and of_agent):
                raise LinkError(f"the identity file {path} {file.problem}; {file.remedy}")
            if not offers:
                problems.append(f"{path} {file.problem}")
            (first if key is not None or is_required else last).extend(offers)
        others = [] if target.identities_only else [_agent_offer(key) for key in of_agent.values()]
        return [*first, *others, *last], problems

    def has_file(self, target: Target) -> bool:
        """Whether a file has a key to try."""
        return any(self._file(path).offers for path in target.identity_files)

    def _file(self, path: str) -> _File:
        with self._lock:
            file = self._files.get(path) or _load(path)
            if file.offers:  # otherwise the user may fix the file before the next attempt
                self._files[path] = file
            return file


def _agent_offer(key: AgentKey) -> Offer:
    return Offer(f"agent key {key.fingerprint}", key)


def _load(path: str) -> _File:
    public = _public_half(path)
    try:
        raw, is_open = _read(path), _is_open(path)
    except FileNotFoundError:
        return _File(public, problem="does not exist", remedy="correct identity_file")
    except OSError as error:
        return _File(public, problem=f"cannot be read: {error.strerror}", remedy="make it readable for you")
    cipher, own_public = _openssh_header(raw)
    public = public or own_public
    locked = _File(public, problem=_ENCRYPTED, remedy=f"add it: ssh-add {path}")
    if cipher not in (b"", b"none"):
        return locked
    try:
        key = _private_key(raw)
    except TypeError:
        return locked
    except Exception:  # noqa: BLE001 (the two libraries raise arbitrary errors for corrupt keys)
        if (public := _public_key(raw)) is not None:
            remedy = f"name the private key: {path.removesuffix('.pub')}"
            return _File(public, problem="is a public key whose private half is not in the ssh-agent", remedy=remedy)
        return _File(
            public, problem="is not a private key that tflaunch can use", remedy="name an ed25519, ecdsa or rsa key"
        )
    if is_open:
        problem = "can be read by other users, so ssh would refuse it"
        return _File(public, problem=problem, remedy=f"run `{shlex.join(['chmod', '600', path])}`")
    return _File(key.asbytes(), (*_certified(path, key), Offer(path, key)))


def _is_open(path: str) -> bool:
    """Return whether others can access our file; files of other users pass, as in ssh."""
    state = os.stat(path)
    return state.st_uid == os.getuid() and bool(state.st_mode & (stat.S_IRWXG | stat.S_IRWXO))


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read(MAX_BYTES)


def _private_key(raw: bytes) -> paramiko.PKey:
    """Load a key in any format of ssh-keygen; raise `TypeError` if it is encrypted."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about obsolete kinds of keys
        try:
            key = serialization.load_ssh_private_key(raw, None)
        except ValueError:
            key = serialization.load_pem_private_key(raw, None)  # type: ignore[assignment]
    if isinstance(key, RSAPrivateKey):
        return paramiko.RSAKey(key=key)
    if not isinstance(key, (EllipticCurvePrivateKey, Ed25519PrivateKey)):
        raise UnsupportedAlgorithm("paramiko does not know this kind")
    # paramiko takes keys of these kinds from files only, and reads no PKCS#8: it gets OpenSSH's format, in memory.
    form = serialization.PrivateFormat.OpenSSH
    text = key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()).decode()
    kind: Callable[..., paramiko.PKey] = (
        paramiko.Ed25519Key if isinstance(key, Ed25519PrivateKey) else paramiko.ECDSAKey
    )
    return kind(file_obj=io.StringIO(text))


def _public_half(path: str) -> bytes | None:
    """Return the public key in the .pub file beside a private key; None without one."""
    try:
        return _public_key(_read(f"{path}.pub"))
    except OSError:
        return None


def _public_key(raw: bytes) -> bytes | None:
    words = raw.split(None, 2)
    try:
        blob = base64.b64decode(words[1], validate=True)
    except (IndexError, binascii.Error):
        return None
    return blob if blob.startswith(len(words[0]).to_bytes(4, "big") + words[0]) else None


def _openssh_header(raw: bytes) -> tuple[bytes, bytes | None]:
    """Return cipher and public key, both in clear text, of a key in OpenSSH's format."""
    try:
        data = base64.b64decode(b"".join(raw.strip().split(b"\n")[1:-1]))
    except binascii.Error:
        return b"", None
    if not data.startswith(_MAGIC):
        return b"", None
    message = paramiko.Message(data[len(_MAGIC) :])
    cipher, _, _ = (message.get_binary() for _ in ("cipher", "derivation of its key", "options of that"))
    message.get_int()
    return cipher, message.get_binary() or None


def _certified(path: str, key: paramiko.PKey) -> Sequence[Offer]:
    """Return the key with the certificate next to its file, if there is a valid one."""
    certificate = f"{path}-cert.pub"
    if not os.path.exists(certificate):
        return []
    certified = copy.copy(key)
    try:
        certified.load_certificate(certificate)
    except Exception:  # noqa: BLE001 (as above)
        return []
    return [Offer(certificate, certified)]
