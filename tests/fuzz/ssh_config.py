"""The output of `ssh -G`: a route to a host, or one error, quickly."""

import random

from fuzz.borders import Border
from fuzz.mutations import mutate_bytes
from fuzz.stages import check_sentence, little_work
from tflaunch.features.ssh.config_lookup import parse_answer
from tflaunch.features.ssh.ssh_config import SshConfig
from tflaunch.plan.model import HostPlan
from tflaunch.transport.base import LinkError

_ANSWER = (b"hostname alpha", b"user ann", b"port 22")
_KEYS = (
    *("hostname", "port", "user", "identityfile", "identitiesonly", "identityagent", "connecttimeout", "hostkeyalias"),
    *("userknownhostsfile", "globalknownhostsfile", "stricthostkeychecking", "proxyjump", "proxycommand", "ciphers"),
    *("macs", "kexalgorithms", "hostkeyalgorithms", "proxyusefdpass", "revokedhostkeys", "requiredrsasize", "PORT"),
    *("canonicalizehostname", "canonicaldomains", "#", "", " "),
)
_VALUES = (
    *("alpha", "beta", "*", "al*", "!alpha", "*a" * 20 + "b", "all", "user", "final", "!final", "exec", "host=alpha"),
    *("yes", "no", "none", "ask", "true", "22", "0", "-1", "65535", "65536", "9" * 5000, "\u0662\u0662", "1h30m", "5x"),
    *("inf", "/dev/null", "/", "~", "~/x", "~nobody-at-all/x", "/a b /c", "%h", "%n.x", "%%", "%", "%C", "%d/k"),
    *("${HOME}", "${NONE}", "${", "$HOME", "SSH_AUTH_SOCK", "ann@beta:22", "ssh://ann@beta:2222/", "[::1]:22"),
    *("a,b,c", "x%h", ",", "+3des-cbc", "-*", "^aes*", "aes128-ctr", '"', "'", '"a b"', "\\", "=", "\x1b[2J", "\x85"),
    *("\u2028", "\udcff", "\x0b", "\0", "x" * 70_000, "nc %h %p", "sh -c 'x' # %r"),
)
_SEPARATORS = (" ", "  ", "\t", "=", "", "\r", "\f")


def generate(chance: random.Random) -> bytes:
    """Return almost valid lines, as `ssh -G` prints them."""
    lines = [_line(chance) for _ in range(chance.randrange(1, 12))]
    if chance.random() < 0.9:
        lines[:0] = _ANSWER
    case = b"\n".join(lines)
    return mutate_bytes(case, chance) if chance.random() < 0.3 else case


def _line(chance: random.Random) -> bytes:
    separator = chance.choice(_SEPARATORS) if chance.random() < 0.05 else " "
    values = [chance.choice(_VALUES) for _ in range(2 if chance.random() < 0.1 else 1)]
    return f"{chance.choice(_KEYS)}{separator}{' '.join(values)}".encode("utf-8", "surrogateescape")


def check(case: bytes) -> None:
    """Resolve a host; no name is looked up, and no command is run."""
    with little_work():
        try:
            target = SshConfig(lambda alias, *_: parse_answer(case, alias)).resolve(HostPlan("alpha", False))
        except LinkError as error:
            check_sentence(str(error), longest=2000)
            return
    for each in (target, *target.jumps):
        assert 1 <= each.port <= 65535
        assert "\0" not in "".join((each.address, each.user, *each.identity_files, *each.known_hosts_files))
        assert "\0" not in each.proxy_command
        assert each.command.replace("\t", " ").isprintable()  # a tab in a name is quoted, and harmless


BORDER = Border(generate, check)
