"""Choose a connection's algorithms: the user's or OpenSSH 9.2's defaults, if paramiko has them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tflaunch.transport.base import LinkError

KEYWORDS = {
    "ciphers": "Ciphers",
    "macs": "MACs",
    "kexalgorithms": "KexAlgorithms",
    "hostkeyalgorithms": "HostKeyAlgorithms",
}
"""The keywords of ssh_config that choose algorithms, by their names in lower case."""

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
    """Return the algorithms to offer, in order of preference.

    Args:
        keyword: one of `KEYWORDS`.
        wish: the user's comma-separated list; "" for our defaults.
        supported: the algorithms that paramiko supports.

    Raises:
        LinkError: paramiko supports none of them.
    """
    names = wish.split(",") if wish else _DEFAULTS[keyword]
    chosen = tuple(name for name in dict.fromkeys(names) if name in supported)
    if not chosen:
        raise LinkError(
            f"{KEYWORDS[keyword]} {wish[:80]!r} in ssh_config leaves nothing that tflaunch can use; "
            f"add one of {', '.join(supported)}"
        )
    return chosen
