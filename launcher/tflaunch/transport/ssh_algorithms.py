"""Which algorithms a connection may use: the defaults of OpenSSH 9.2, changed by the user's ssh_config."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tflaunch.transport.base import LinkError
from tflaunch.transport.ssh_patterns import matches

KEYWORDS = {
    "ciphers": "Ciphers",
    "macs": "MACs",
    "kexalgorithms": "KexAlgorithms",
    "hostkeyalgorithms": "HostKeyAlgorithms",
}
"""The keywords of ssh_config that choose algorithms, by their names in small letters."""

_HOST_KEYS = (
    *("ssh-ed25519", "ecdsa-sha2-nistp256", "ecdsa-sha2-nistp384", "ecdsa-sha2-nistp521"),
    *("rsa-sha2-512", "rsa-sha2-256"),
)
_DEFAULTS: Mapping[str, Sequence[str]] = {
    "ciphers": (
        "chacha20-poly1305@openssh.com",
        *("aes128-gcm@openssh.com", "aes256-gcm@openssh.com"),
        *("aes128-ctr", "aes192-ctr", "aes256-ctr"),
    ),
    "macs": (
        *("hmac-sha2-256-etm@openssh.com", "hmac-sha2-512-etm@openssh.com"),
        *("hmac-sha2-256", "hmac-sha2-512", "hmac-sha1"),
    ),
    "kexalgorithms": (
        *("mlkem768x25519-sha256", "curve25519-sha256", "curve25519-sha256@libssh.org"),
        *("ecdh-sha2-nistp256", "ecdh-sha2-nistp384", "ecdh-sha2-nistp521", "diffie-hellman-group-exchange-sha256"),
        *("diffie-hellman-group16-sha512", "diffie-hellman-group14-sha256"),
    ),
    "hostkeyalgorithms": (*_HOST_KEYS, *(f"{name}-cert-v01@openssh.com" for name in _HOST_KEYS)),
}


def allowed(keyword: str, wish: str, supported: Sequence[str]) -> tuple[str, ...]:
    """Return the algorithms to offer, the preferred one first.

    Args:
        keyword: one of `KEYWORDS`.
        wish: its value in ssh_config, "" for none: a list of patterns that replaces the defaults, or with "+", "-" or
            "^" before it one that is added to them, taken from them or moved to their head.
        supported: what paramiko can do.

    Raises:
        LinkError: nothing is left.
    """
    defaults = [name for name in _DEFAULTS[keyword] if name in supported]
    sign = wish[:1] if wish[:1] in ("+", "-", "^") else ""
    patterns = wish.removeprefix(sign).split(",")
    listed = [name for pattern in patterns for name in supported if matches([pattern], name)]
    if sign == "-":
        chosen = [name for name in defaults if not matches(patterns, name)]
    elif sign == "+":
        chosen = [*defaults, *listed]
    elif sign == "^":
        chosen = [*listed, *defaults]
    else:
        chosen = listed if wish else defaults
    if not chosen:
        raise LinkError(
            f"{KEYWORDS[keyword]} {wish[:80]!r} in ssh_config leaves nothing that tflaunch can use; "
            f"add one of {', '.join(supported)}"
        )
    return tuple(dict.fromkeys(chosen))
