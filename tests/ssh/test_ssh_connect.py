"""Connections reach the right host or none, in time; a failure is one sentence with a remedy."""

import os
import re
import shlex
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import paramiko
import psutil
import pytest

from support.processes import all_processes, command_of
from support.sshd import USER, Keyring, Sshd, StartSshd, authorize, kill, make_key, public, wait_dead
from support.waiting import PATIENCE, wait_until
from tflaunch.features.ssh import transport as ssh_transport
from tflaunch.features.ssh import user_keys
from tflaunch.features.ssh.connections import Connector
from tflaunch.features.ssh.known_hosts import fingerprint
from tflaunch.features.ssh.ssh_config import Target
from tflaunch.features.ssh.transport import Limit
from tflaunch.transport.base import LinkError

SOON = 3.0
"""A timeout for what cannot succeed; all before it must succeed within it on a busy machine."""
Speak = Callable[[socket.socket], object]


class Machine:
    """A user of hosts: a connector, known_hosts files, keys, and servers that do not speak SSH."""

    def __init__(self, directory: Path, keys: Keyring, start: StartSshd, stack: ExitStack) -> None:
        self.directory = directory
        self.keys = keys
        self.start = start
        self.connector = Connector()
        self._stack = stack

    def target(self, host: Sshd, **changes: Any) -> Target:
        """Return a target for a client that knows the host and has the right key."""
        known = self.directory / f"known_hosts-{host.name}"
        if not known.exists():
            known.write_text(host.known_hosts)
        target = Target(
            host.name, host.address, host.port, host.user,
            identity_files=(str(host.client_key),), known_hosts_files=(str(known),), host_key_name=host.address,
            command=f"ssh -p {host.port} {host.user}@{host.address}",
        )  # fmt: skip
        return target._replace(**changes)

    def stranger(self, speak: Speak, address: str = "127.0.0.9") -> Target:
        """Return the target of a server that sends whatever `speak` does."""
        server = self._stack.enter_context(socket.create_server((address, 0)))
        self.serve(server, speak)
        return self.closed(server.getsockname()[1], address)

    def serve(self, server: socket.socket, speak: Speak) -> None:
        """Serve the clients of a socket one after the other, until the end of the test."""

        def serve() -> None:
            while True:
                try:
                    client, _ = server.accept()
                except OSError:
                    return
                with client, suppress(OSError):
                    speak(client)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        self._stack.callback(thread.join)
        self._stack.callback(_stop, server)

    def closed(self, port: int, address: str = "127.0.0.9", **changes: Any) -> Target:
        key = self.keys["client"]
        target = Target("x", address, port, USER, identity_files=(str(key),), host_key_name=address)
        return target._replace(**changes)

    def agent(self, *keys: Path, options: Sequence[str] = ()) -> str:
        """Start an ssh-agent with keys, and return its socket."""
        path = str(self.directory / "agent.sock")
        environ = {**os.environ, "SSH_AUTH_SOCK": path, "SSH_ASKPASS": "/bin/false", "SSH_ASKPASS_REQUIRE": "force"}
        agent = subprocess.Popen(["ssh-agent", "-D", "-a", path], stdout=subprocess.DEVNULL, env=environ)
        self._stack.callback(agent.wait)
        self._stack.callback(agent.kill)
        wait_until(lambda: _is_listening(path))
        for key in keys:
            subprocess.run(["ssh-add", "-q", *options, key], check=True, env=environ, capture_output=True)
        return path

    def connect(self, target: Target) -> paramiko.Transport:
        return self.connector.connect(target, Limit.of(PATIENCE))

    def reach(self, target: Target, command: str = "echo $SSH_CONNECTION") -> str:
        """Connect, and return the output of a command."""
        return said_by(self.connect(target), command)

    def reach_all(self, targets: Sequence[Target]) -> list[paramiko.Transport]:
        with ThreadPoolExecutor(len(targets)) as pool:
            return list(pool.map(self.connect, targets))

    def error(self, target: Target, timeout: float = PATIENCE) -> str:
        with pytest.raises(LinkError) as caught:
            self.connector.connect(target, Limit.of(timeout))
        sentence = str(caught.value)
        assert sentence
        assert sentence.isprintable()
        assert len(sentence) < 700
        return sentence

    def errors(self, targets: Sequence[Target]) -> list[str]:
        with ThreadPoolExecutor(len(targets)) as pool:
            return list(pool.map(self.error, targets))


def close_all() -> None:
    """Close all connections of this process, those to jump hosts, too."""
    for thread in threading.enumerate():
        if isinstance(thread, paramiko.Transport):
            thread.close()


def said_by(transport: paramiko.Transport, command: str = "echo $SSH_CONNECTION") -> str:
    """Return the output of a command, and close the connection."""
    with transport.open_session() as channel:
        channel.exec_command(command)
        said = b"".join(iter(lambda: channel.recv(1024), b"")).decode().strip()
    transport.close()
    return said


@pytest.fixture
def machine(tmp_path: Path, keys: Keyring, sshd: StartSshd, capfd: pytest.CaptureFixture[str]) -> Iterator[Machine]:
    """Make connections; afterwards none of their threads may be alive, and nothing may have been printed."""
    before = set(threading.enumerate())
    with ExitStack() as stack:
        machine = Machine(tmp_path, keys, sshd, stack)
        yield machine
        close_all()
    for thread in set(threading.enumerate()) - before:
        assert thread.daemon, f"{thread} would keep the program from ending"
        if isinstance(thread, paramiko.Transport):
            thread.close()
            thread.join(PATIENCE)
            assert not thread.is_alive(), f"{thread} goes on"
    assert capfd.readouterr() == ("", "")


# ---- keys


@pytest.mark.parametrize("kind", ["ed25519", "ecdsa", "rsa"])
def test_every_kind_of_key(machine: Machine, kind: str) -> None:
    """For hosts and for users: in a file, and in an agent, which must be asked for a signature that is not obsolete."""
    host = machine.start(host_keys=[f"host-{kind}"])
    key = machine.keys[f"client-{kind}"]
    authorize(host.directory, key)
    transport = machine.connect(machine.target(host, identity_files=(str(key),)))
    assert transport.local_cipher == "aes128-gcm@openssh.com"
    assert said_by(transport).split()[2] == host.address
    assert machine.reach(machine.target(host, identity_files=(), agent=machine.agent(key)))


@pytest.mark.parametrize("beside", [True, False], ids=["public half beside", "no public half"])
def test_an_encrypted_key_in_the_agent(machine: Machine, tmp_path: Path, beside: bool) -> None:
    """It is recognised by its public half, so no other key of the agent is tried."""
    plain = machine.keys["client"]
    key = tmp_path / "key"
    key.write_bytes(plain.read_bytes())
    key.chmod(0o600)
    subprocess.run(["ssh-keygen", "-q", "-p", "-P", "", "-N", "secret", "-f", key], check=True, capture_output=True)
    if beside:
        key.with_name("key.pub").write_text(public(plain))
    agent = machine.agent(machine.keys["other"], plain)
    host = machine.start(lines=["MaxAuthTries 1"])
    assert machine.reach(machine.target(host, identity_files=(str(key),), agent=agent, is_identity_required=True))


def test_identities_only(machine: Machine) -> None:
    """The agent's other keys are not tried; IdentityFile may name a key whose private half is there."""
    key = machine.keys["client"]
    agent = machine.agent(*(machine.keys[f"other-{number}"] for number in range(3)), key)
    host = machine.start(lines=["MaxAuthTries 3"])
    target = machine.target(host, agent=agent)
    sentence = machine.error(target._replace(identity_files=()))
    assert sentence.startswith(f"{host.address}:{host.port} hangs up as too many keys are wrong for user {USER}: ")
    assert "`IdentitiesOnly yes`" in sentence
    assert machine.reach(target._replace(identities_only=True))
    assert machine.reach(target._replace(is_identity_required=True))
    assert machine.reach(target._replace(identity_files=(f"{key}.pub",), identities_only=True))


@pytest.mark.parametrize("where", ["file", "certificate beside, key in the agent", "agent"])
def test_a_users_certificate(machine: Machine, tmp_path: Path, where: str) -> None:
    """It is next to its key, which the host does not know, or both are in the agent."""
    authority = machine.keys["authority"]
    key = make_key(tmp_path / "key")
    sign = ["ssh-keygen", "-q", "-s", str(authority), "-I", "test", "-n", USER, f"{key}.pub"]
    subprocess.run(sign, check=True, capture_output=True)
    target = machine.target(machine.start(lines=[f'TrustedUserCAKeys "{authority}.pub"']))
    if where == "agent":
        target = target._replace(agent=machine.agent(key), identity_files=())
    else:
        target = target._replace(identity_files=(str(key),))
    if where.startswith("certificate"):
        (tmp_path / "elsewhere").mkdir()
        target = target._replace(agent=machine.agent(key.rename(tmp_path / "elsewhere" / "key")))
    assert machine.reach(target)


# ---- keys that do not help


def test_a_wrong_key(machine: Machine, tmp_path: Path) -> None:
    """The message says what was tried and what was not; whether the user exists is not revealed."""
    locked = make_key(tmp_path / "locked", passphrase="secret")
    agent = machine.agent(machine.keys["other"])
    host = machine.start()
    authorize(host.directory)
    target = machine.target(host, agent=agent)
    files = (*target.identity_files, str(locked), str(tmp_path / "none"))
    shown = fingerprint(paramiko.PKey.from_path(machine.keys["other"]).asbytes())
    assert machine.error(target._replace(identity_files=files)) == (
        f"{host.address}:{host.port} does not let user {host.user} in with agent key {shown}, "
        f"{target.identity_files[0]} (not tried: {locked} is encrypted and not in the ssh-agent; {tmp_path}/none "
        "does not exist); add the public key to ~/.ssh/authorized_keys there, or name another user or identity_file"
    )
    unknown = machine.error(target._replace(user="nobody-at-all"))
    assert "does not let user nobody-at-all in with" in unknown


OPEN = " can be read by other users, so ssh would refuse it; run `chmod 600 {key}`"
KEYS_IN_SPECS = {
    "missing": " does not exist; correct identity_file",
    "encrypted": " is encrypted and not in the ssh-agent; add it: ssh-add ",
    "public": " is a public key whose private half is not in the ssh-agent; name the private key: ",
    "directory": " cannot be read: Is a directory; make it readable",  # the one thing that root cannot read
    "of mode 644": OPEN,
    "empty": " is not a private key that tflaunch can use; name an ed25519, ecdsa or rsa key",
}


@pytest.mark.parametrize("kind", KEYS_IN_SPECS)
def test_the_key_in_the_spec_has_to_be_one(machine: Machine, tmp_path: Path, kind: str) -> None:
    """This is reported before any connection is made."""
    key = tmp_path / "key"
    if kind == "of mode 644":
        make_key(key).chmod(0o644)
    elif kind == "encrypted":
        make_key(key, passphrase="secret")
        key.with_name("key.pub").unlink()
    elif kind == "public":
        key.write_text(public(machine.keys["other"]))
    elif kind == "directory":
        key.mkdir()
    elif kind == "empty":
        key.touch()
    target = machine.closed(1, identity_files=(str(key), str(machine.keys["client"])), is_identity_required=True)
    words = KEYS_IN_SPECS[kind].format(key=key)
    assert machine.error(target).startswith(f"the identity file {key}{words}")


def test_an_encrypted_key_that_cannot_be_recognised(machine: Machine, tmp_path: Path) -> None:
    """It may be any key of the agent, if the agent has one."""
    key = tmp_path / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ecdsa", "-m", "PEM", "-N", "secret", "-f", key], check=True)
    key.with_name("key.pub").unlink()
    target = machine.target(machine.start(), identity_files=(str(key),), is_identity_required=True)
    assert machine.reach(target._replace(agent=machine.agent(machine.keys["client"])))


def test_a_key_that_becomes_right(machine: Machine) -> None:
    """Only usable keys are cached."""
    path = machine.directory / "late"
    target = machine.target(machine.start(), identity_files=(str(path),))
    assert f"there is no key to log in with: {path} does not exist; add one" in machine.error(target)
    path.write_bytes(machine.keys["client"].read_bytes())
    path.chmod(0o600)
    assert machine.reach(target)
    words = "neither a key file nor an ssh-agent with keys was found; add one to the ssh-agent with ssh-add"
    assert words in machine.error(target._replace(identity_files=()))


OLD = r"\(SSH-2.0-\S+.*\) is too old or too strict for tflaunch: no acceptable "
CONFIGURED_OTHERWISE = {
    "no keys": (
        ["PubkeyAuthentication no", "PasswordAuthentication yes"],
        "takes no keys from user .*only password.*; allow PubkeyAuthentication there$",
    ),
    "more than a key": (
        ["AuthenticationMethods publickey,password", "PasswordAuthentication yes"],
        f"accepts a key of user {USER}, but wants password too; let keys be enough there",
    ),
    "ciphers": (["Ciphers chacha20-poly1305@openssh.com"], f"{OLD}ciphers; see"),
    "key exchange": (["KexAlgorithms sntrup761x25519-sha512@openssh.com"], f"{OLD}kex algorithm; see"),
}


@pytest.mark.parametrize("case", CONFIGURED_OTHERWISE)
def test_a_host_that_is_configured_otherwise(machine: Machine, case: str) -> None:
    """It wants something else than a key, which is never tried, or an algorithm that paramiko does not know."""
    lines, words = CONFIGURED_OTHERWISE[case]
    target = machine.target(machine.start(lines=lines))
    sentence = machine.error(target)
    assert re.search(words, sentence)
    if case == "no keys":
        shared = machine.error(target._replace(is_shared=True))
        assert shared == f"{sentence}; a connection that ssh shares (ControlPath) is not used"


# ---- agents that do not help


def test_an_agent_that_refuses(machine: Machine) -> None:
    """The user is prompted, and declines: the other keys are still tried."""
    agent = machine.agent(machine.keys["client"], options=["-c"])
    host = machine.start()
    authorize(host.directory, machine.keys["client"], machine.keys["other"])
    target = machine.target(host, identity_files=(), agent=agent)
    assert "(which the ssh-agent does not use); add" in machine.error(target)
    assert machine.reach(target._replace(identity_files=(str(machine.keys["other"]),)))


def test_an_agent_that_is_gone_or_talks_nonsense(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is as if there were none."""
    monkeypatch.setattr(user_keys, "_LIST_PATIENCE", 0.5)
    host = machine.start()
    answers = [
        b"",
        b"\0\0\0\0",
        b"\0\0\0\1\5",
        b"\0\0\0\5\x0c\xff\xff\xff\xff",
        b"\xff\xff\xff\xff\x0c",
        b"\0\0\0\x11\x0c\0\0\0\1\0\0\0\4junk\0\0\0\0",
        b"GET / HTTP/1.1\r\n\r\n",
    ]
    path = machine.directory / "socket"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        for gone in (machine.directory / "none", path, machine.directory / ("x" * 200)):
            assert machine.reach(machine.target(host, agent=str(gone)))
        listener.listen()

        def speak(client: socket.socket) -> None:
            client.recv(100)
            client.sendall(answers[0])

        machine.serve(listener, speak)
        while answers:
            assert machine.reach(machine.target(host, agent=str(path))), answers[0]
            del answers[0]
        _stop(listener)


def test_an_agent_that_says_nothing(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """The wait for it is short, even if it does not accept connections."""
    monkeypatch.setattr(user_keys, "_LIST_PATIENCE", 1.0)
    path = str(machine.directory / "agent.sock")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen(1)
        assert all(map(said_by, machine.reach_all([machine.target(machine.start(), agent=path)] * 5)))


def test_an_agent_that_does_not_sign(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may wait for the user to touch a device, within the timeout."""
    agent = machine.agent(machine.keys["client"])
    target = machine.target(machine.start(), identity_files=(), agent=agent)
    sign, over = user_keys.AgentKey.sign_ssh_data, threading.Event()

    def slow(key: user_keys.AgentKey, data: bytes, algorithm: str | None = None) -> paramiko.Message:
        over.wait(PATIENCE)
        return sign(key, data, algorithm)

    monkeypatch.setattr(user_keys.AgentKey, "sign_ssh_data", slow)
    sentence = machine.error(target, SOON)
    over.set()
    assert "takes the ssh-agent (does it ask you for something?) or" in sentence
    assert f"longer than {SOON:g} s" in sentence


# ---- host keys


def test_a_host_that_is_not_known(machine: Machine) -> None:
    """The remedy works, and takes effect at once: no new connector is needed. The fingerprint is that of ssh-keygen."""
    host = machine.start()
    file = machine.directory / "known_hosts-h1"
    file.write_text("")
    target = machine.target(host)
    listed = subprocess.run(["ssh-keygen", "-l", "-f", host.host_keys[0]], capture_output=True, text=True, check=True)
    shown = listed.stdout.split()[1]
    sentence = machine.error(target)
    assert f"its host key {shown} (ssh-ed25519) is not in {file} as that of [{host.address}]:{host.port}" in sentence
    command = sentence.split("`")[1]
    options = f"-F none -o UserKnownHostsFile={file} -o StrictHostKeyChecking=accept-new -o BatchMode=yes"
    subprocess.run(command.replace("ssh ", f"ssh {options} ", 1), shell=True, check=False, capture_output=True)
    assert machine.reach(target)


def test_a_host_whose_key_has_changed(machine: Machine) -> None:
    """Nothing of ours is sent to it; the remedy makes ssh and tflaunch forget the old key."""
    host = machine.start()
    target = machine.target(host)
    subprocess.run(["ssh-keygen", "-q", "-H", "-f", *target.known_hosts_files], check=True, capture_output=True)
    host.restart("another")
    sentence = machine.error(target)
    assert sentence.startswith("its host key has changed: ssh-ed25519 was SHA256:")
    assert "publickey" not in host.log.read_text()
    command = sentence.split("`")[1]
    assert command.startswith(f"ssh-keygen -R '[{host.address}]:{host.port}' -f ")
    subprocess.run(command, shell=True, check=True, capture_output=True)
    assert "is not in" in machine.error(target)


def test_a_certificate_of_a_host(machine: Machine) -> None:
    """The host's own key is unknown, but its authority is known."""
    authority = machine.keys["authority-rsa"]
    key = machine.keys["certified-ed25519"]
    names = ",".join(f"127.0.0.{number}" for number in range(1, 256))  # not a pattern: ssh accepts none
    sign = ["ssh-keygen", "-q", "-s", str(authority), "-I", "test", "-h", "-n", names, f"{key}.pub"]
    subprocess.run(sign, check=True, capture_output=True)
    host = machine.start(host_keys=[key.name], lines=[f'HostCertificate "{key}-cert.pub"'])
    (machine.directory / "known_hosts-h1").write_text(f"@cert-authority [127.0.0.*]:* {public(authority)}\n")
    assert machine.reach(machine.target(host))
    (machine.directory / "known_hosts-h1").write_text(f"@cert-authority *.example {public(authority)}\n")
    assert "is not in" in machine.error(machine.target(host))


# ---- places without SSH


def test_a_name_that_does_not_resolve(machine: Machine) -> None:
    for name in ("no-such-host.invalid", "a..b", "x" * 64 + ".example"):
        sentence = machine.error(machine.closed(22, name))
        assert sentence.startswith(f"the name {name} does not resolve")
        assert sentence.endswith("; correct `ssh` in the spec, or HostName in ~/.ssh/config")


def test_a_name_server_that_is_silent(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """The system would wait much longer than we do."""
    resolve, over = socket.getaddrinfo, threading.Event()

    def slow(*arguments: object, **options: object) -> object:
        over.wait(PATIENCE)
        return resolve(*arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(socket, "getaddrinfo", slow)
    sentence = machine.error(machine.closed(22, "slow.invalid"), SOON)
    over.set()
    assert sentence.startswith(f"the name slow.invalid does not resolve within {SOON:g} s")


def test_a_closed_port(machine: Machine) -> None:
    with socket.create_server(("127.0.0.9", 0)) as server:
        port = server.getsockname()[1]
    words = f"127.0.0.9:{port} refuses connections; is sshd running there, and is that its port?"
    assert machine.error(machine.closed(port)) == words


def test_the_second_address_of_a_name(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """An address that refuses, and one that drops all packets, do not hide it."""
    host = machine.start()
    with _full_server() as full:
        places = [("127.0.0.9", 1), full.getsockname(), (host.address, host.port)]
        found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", place) for place in places]
        monkeypatch.setattr(ssh_transport, "_resolve", lambda *_: found)
        assert said_by(machine.connector.connect(machine.target(host), Limit.of(4 * SOON)))


def test_a_black_hole(machine: Machine) -> None:
    """Connections are neither accepted nor refused."""
    with _full_server() as full:
        target = machine.closed(full.getsockname()[1])
        words = f"no answer from 127.0.0.9:{target.port} within {SOON:g} s; is it running, and does a firewall let you"
        assert machine.error(target, SOON).startswith(words)
        assert machine.error(target._replace(connect_timeout=SOON)).startswith(words)


ELSE, NO_END = 'does not speak SSH but says "', "the handshake with 127.0.0.9:"
SAID = {
    "HTTP": (b"HTTP/1.1 400 Bad Request\r\nServer: x\r\n\r\n", f"{ELSE}HTTP/1.1 400 Bad Request"),
    "binary": (b"\xff" * 1000 + b"\n", f"{ELSE}{chr(0xFFFD) * 57}..."),
    "nothing": (b"", "hangs up before it says anything; its sshd may not let this machine in, or have too many"),
    "version": (b"SSH-2.0-x\r\n", "hangs up during the handshake; its sshd may have too many new connections"),
    "version 1": (b"SSH-1.5-old\r\n", "(SSH-1.5-old) is too old or too strict for tflaunch: 1.5 instead of 2.0"),
    "no packet": (b"SSH-2.0-x\r\n" + b"\0\0\0\x0b\x0a" + b"x" * 100, NO_END),
    "farewell": (
        b"SSH-2.0-x\r\n\0\0\0\x1c\x0a\1\0\0\0\2\0\0\0\4full\0\0\0\0" + b"\0" * 10,
        'ends the handshake: "full"',
    ),
}


@pytest.mark.parametrize("case", SAID)
def test_a_port_that_says_something_else_and_hangs_up(machine: Machine, case: str) -> None:
    """At any time during the handshake; it is quoted, made safe for a terminal."""
    words, shown = SAID[case]

    def speak(client: socket.socket) -> None:
        client.sendall(words)
        client.shutdown(socket.SHUT_WR)
        read_all(client)

    sentence = machine.error(machine.stranger(speak))
    assert shown in sentence
    assert sentence.endswith("is that the port of sshd?") or ELSE not in shown


def read_all(client: socket.socket) -> None:
    while client.recv(4096):
        pass


def test_a_server_that_stops(machine: Machine) -> None:
    """Before it says anything, or in the middle of the handshake: the connection times out."""
    target = machine.stranger(read_all)
    assert f"accepts the connection but says nothing within {SOON:g} s" in machine.error(target, SOON)

    def stop(client: socket.socket) -> None:
        client.sendall(b"SSH-2.0-x\r\n")
        read_all(client)

    target = machine.stranger(stop)
    sentence = machine.error(target, SOON)
    assert sentence.endswith(f"does not finish the handshake within {SOON:g} s; is it overloaded?")


def test_too_many_new_connections(machine: Machine) -> None:
    host = machine.start(lines=["MaxStartups 1"])
    with socket.create_connection((host.address, host.port)) as other:
        other.recv(100)
        assert "MaxStartups" in machine.error(machine.target(host))


# ---- jump hosts


def test_a_way_over_two(machine: Machine) -> None:
    """The last host reports the addresses of the connection; nothing is left on the jump hosts afterwards."""
    one, two, host = machine.start("one"), machine.start("two"), machine.start("host")
    jumps = (first := machine.target(one), machine.target(two, jumps=(first,)))
    transport = machine.connect(machine.target(host, jumps=jumps))
    connections = [*one.connections(), *two.connections()]
    assert said_by(transport).split()[2:] == [host.address, str(host.port)]
    assert f"Accepted publickey for {USER}" in one.log.read_text()
    assert f"Accepted publickey for {USER}" in two.log.read_text()
    close_all()
    assert wait_dead(connections)
    transport.join(PATIENCE)
    assert not transport.is_active()


def test_it_is_connected_to_once(machine: Machine) -> None:
    """However many hosts are behind it, as it counts its connections; again if the connection is lost."""
    gate = machine.start("gate")
    hosts = [machine.start(host_keys=["host-shared"]) for _ in range(5)]
    targets = [machine.target(host, jumps=(machine.target(gate),)) for host in hosts] * 4
    for times in (1, 2):
        transports = machine.reach_all(targets)
        assert [said_by(transport).split()[2] for transport in transports] == [each.address for each in targets]
        assert gate.log.read_text().count("Accepted publickey") == times
        gate.kill_connections()
        wait_until(lambda: not any(transport.is_active() for transport in transports))  # noqa: B023


def test_a_connection_to_it_that_is_dead_without_a_word(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """A new one is made in time, for all that need it."""
    gate, host = machine.start("gate"), machine.start("host")
    target = machine.target(host, jumps=(machine.target(gate),))
    first = machine.connect(target)
    frozen = gate.connections()
    monkeypatch.setattr(ssh_transport, "JUST_NOW", 0.0)
    for process in frozen:
        process.suspend()
    try:
        assert all(map(said_by, machine.reach_all([target] * 5)))
        assert gate.log.read_text().count("Accepted publickey") == 2
    finally:
        for process in frozen:
            process.resume()
    assert said_by(first)  # it was not dead after all
    close_all()
    assert wait_dead(frozen)


def test_what_is_wrong_with_a_jump_host_is_said_of_it(machine: Machine) -> None:
    """Not of the host behind it or of another jump host; once for all that wait."""
    gate, host = machine.start("gate"), machine.start("host")
    good = machine.target(gate)
    closed = machine.closed(1)._replace(host="two", jumps=(good,))
    for jump, words in (
        (good._replace(known_hosts_files=()), "jump host gate: its host key SHA256:"),
        (good._replace(user="nobody-at-all"), f"jump host gate: {gate.address}:{gate.port} does not let user"),
        (machine.closed(1), "jump host x: 127.0.0.9:1 refuses connections"),
        (closed, "jump host gate: it cannot connect to 127.0.0.9:1 (Connection refused); is sshd running there"),
    ):
        sentences = set(machine.errors([machine.target(host, jumps=(*jump.jumps, jump))] * 20))
        assert [sentence.startswith(words) for sentence in sentences] == [True], sentences
    assert gate.log.read_text().count("Accepted publickey") == 1


def test_what_is_wrong_behind_it(machine: Machine) -> None:
    """Each host gets its own message, though all are requested at once over one connection."""
    gate = machine.start("gate", lines=["PermitOpen 127.0.0.9:* 127.0.0.3:* no-such-host.invalid:*"])
    host = machine.start("host")
    soon: dict[str, Any] = {"connect_timeout": SOON}
    silent = machine.stranger(read_all)._replace(**soon)
    other = machine.stranger(lambda client: client.sendall(b"HTTP/1.1 400\r\n"))
    with _full_server() as full:
        hole = full.getsockname()[1]
        expected = {
            machine.closed(1): "jump host gate: it cannot connect to 127.0.0.9:1 (Connection refused); is sshd",
            machine.closed(1, "127.0.0.8"): "jump host gate: it does not connect us to 127.0.0.8:1 (",
            machine.closed(22, "no-such-host.invalid"): "jump host gate: it cannot connect to no-such-host.invalid",
            machine.closed(hole, **soon): f"jump host gate: no answer from 127.0.0.9:{hole}",
            silent: f"127.0.0.9:{silent.port} behind jump host gate accepts the connection but says nothing within",
            other: f'127.0.0.9:{other.port} behind jump host gate does not speak SSH but says "HTTP/1.1 400"',
            machine.target(host, user="nobody"): f"{host.address}:{host.port} behind jump host gate does not let",
        }
        sentences = machine.errors([target._replace(jumps=(machine.target(gate),)) for target in expected] * 4)
    for sentence, words in zip(sentences, [*expected.values()] * 4, strict=True):
        assert sentence.startswith(words)
    assert gate.log.read_text().count("Accepted publickey") == 1


# ---- ProxyCommand

RELAY = """
import os, select, signal, socket, sys
signal.signal(signal.SIGHUP, signal.SIG_IGN if "stubborn" in sys.argv else signal.SIG_DFL)
print("relay started", file=sys.stderr)
inner = socket.create_connection((sys.argv[1], int(sys.argv[2])))
while True:
    for source in select.select([0, inner], [], [])[0]:
        data = os.read(0, 65536) if source == 0 else inner.recv(65536)
        if not data and "stubborn" in sys.argv:
            signal.pause()
        if not data:
            sys.exit()
        inner.sendall(data) if source == 0 else os.write(1, data)
"""
ENDS = pytest.mark.parametrize("options", [(), ("stubborn",)], ids=["ends with its input", "ends by KILL only"])


def relays(machine: Machine) -> list[psutil.Process]:
    """Return the commands, and the shells that watch them."""
    path = f"{machine.directory}/relay"
    return [process for process in all_processes() if any(path in word for word in command_of(process))]


def target_behind(machine: Machine, host: Sshd, *options: str) -> Target:
    """Return the target of a host behind a command, which connects its input and output to a port."""
    path = machine.directory / "relay"
    path.write_text(RELAY)
    words = [sys.executable, str(path), host.address, str(host.port), *options]
    return machine.target(host, proxy_command=shlex.join(words))


@ENDS
def test_the_connection_and_its_end(machine: Machine, options: tuple[str, ...]) -> None:
    """When the connection is closed, or the host is lost, the command ends."""
    host = machine.start()
    transport = machine.connect(target_behind(machine, host, *options))
    commands = relays(machine)
    assert len(commands) == 2
    assert said_by(transport, "head -c 1000000 /dev/zero | wc -c") == "1000000"
    assert wait_dead(commands)
    transport = machine.connect(target_behind(machine, host))
    commands = relays(machine)
    kill(host.connections())
    transport.join(PATIENCE)
    assert not transport.is_active()
    assert wait_dead(commands)


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("no-such-command-at-all", 'ends before SSH begins and says "'),
        ("sh -c 'echo first; echo no way there' >&2", 'ends before SSH begins and says "first; no way there"; do'),
        ("true", "ends before SSH begins; does it work by hand?"),
        ("sleep 1000", f"brings no answer within {SOON:g} s; does it work by hand?"),
        ("sh -c 'echo HTTP/1.1 400; read -r version'", 'does not speak SSH but says "HTTP/1.1 400"'),
        (
            "sh -c 'yes >&2 & exec sleep 1000'",
            f'brings no answer within {SOON:g} s and says "y; y"; does it work by hand?',
        ),
    ],
)
def test_a_command_that_is_silent(machine: Machine, monkeypatch: pytest.MonkeyPatch, command: str, words: str) -> None:
    """Its output is quoted; the command is ended. As in a service, no shell is named."""
    monkeypatch.delenv("SHELL", raising=False)
    target = machine.closed(22, proxy_command=f"{command} # {machine.directory}/relay")
    sentence = machine.error(target, SOON if "sleep 1000" in command else PATIENCE)
    assert words in sentence
    assert "127.0.0.9:22" in sentence
    assert wait_dead(relays(machine))


@ENDS
def test_no_command_survives_tflaunch(machine: Machine, options: tuple[str, ...]) -> None:
    target = target_behind(machine, machine.start(), *options)
    program = f"""if True:
        import sys
        from tflaunch.features.ssh.ssh_config import Target
        from tflaunch.features.ssh.transport import Limit
        from tflaunch.features.ssh.connections import Connector
        transport = Connector().connect(eval(sys.argv[1]), Limit.of({PATIENCE}))
        print("connected", flush=True)
        sys.stdin.read()
    """
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", program, repr(target)], stdin=pipe, stdout=pipe) as process:
        assert process.stdout.readline() == b"connected\n"
        commands = [each for each in relays(machine) if each.pid != process.pid]
        assert len(commands) == 2
        process.kill()
    assert wait_dead(commands)


@contextmanager
def _full_server() -> Iterator[socket.socket]:
    """Yield a server whose queue is full: the kernel no longer answers connections."""
    with ExitStack() as stack:
        server = stack.enter_context(socket.create_server(("127.0.0.9", 0), backlog=0))
        while True:
            client = stack.enter_context(socket.socket())
            client.settimeout(0.2)
            try:
                client.connect(server.getsockname())
            except TimeoutError:
                break
        yield server


def _stop(server: socket.socket) -> None:
    with suppress(OSError):
        server.shutdown(socket.SHUT_RDWR)  # wakes who accepts


def _is_listening(path: str) -> bool:
    with socket.socket(socket.AF_UNIX) as client:
        return client.connect_ex(path) == 0
