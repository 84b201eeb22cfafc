"""Which algorithms are offered: none that OpenSSH 9.2 has retired, and those that the user selects."""

from __future__ import annotations

import socket

import pytest

from tflaunch.features.ssh.transport import KEYWORDS, Transport, allowed_algorithms
from tflaunch.transport.base import LinkError

pytestmark = pytest.mark.unit

CIPHERS = ("aes128-ctr", "aes256-ctr", "aes128-cbc", "3des-cbc", "aes128-gcm@openssh.com", "aes256-gcm@openssh.com")


@pytest.mark.parametrize(
    ("wish", "offered"),
    [
        ("", "aes128-gcm@openssh.com aes256-gcm@openssh.com aes128-ctr aes256-ctr"),
        ("aes256-ctr,3des-cbc", "aes256-ctr 3des-cbc"),
        ("no-such-cipher,aes256-ctr,aes256-ctr", "aes256-ctr"),
    ],
)
def test_the_user_chooses(wish: str, offered: str) -> None:
    """In the user's order, as far as paramiko supports them; weak ones only by name."""
    assert allowed_algorithms("ciphers", wish, CIPHERS) == tuple(offered.split())


@pytest.mark.parametrize("keyword", KEYWORDS)
@pytest.mark.parametrize("wish", ["no-such-algorithm", "-"])
def test_nothing_to_offer_is_an_error(keyword: str, wish: str) -> None:
    """It names the keyword as users write it, and the available algorithms."""
    with pytest.raises(LinkError, match=f"^{KEYWORDS[keyword]} '.*' in ssh_config leaves nothing .* add one of alpha$"):
        allowed_algorithms(keyword, wish, ["alpha"])


def test_nothing_weak_is_offered() -> None:
    one, other = socket.socketpair()
    with one, other:
        options = Transport(one, (), {}).get_security_options()
        transport = Transport(other, (), {"hostkeyalgorithms": "ssh-ed25519", "macs": "hmac-sha2-512"})
    weak = ("cbc", "3des", "md5", "-96", "arcfour", "blowfish", "group1-", "group14-sha1", "exchange-sha1", "ssh-dss")
    offered = (*options.ciphers, *options.digests, *options.kex, *options.key_types)
    assert len(offered) > 15
    assert [name for name in offered if any(part in name for part in weak)] == []
    assert "ssh-rsa" not in offered
    assert transport.preferred_keys == ("ssh-ed25519",)
    assert transport.get_security_options().digests == ("hmac-sha2-512",)
