"""What a host says about its warm servers."""

from __future__ import annotations

from typing import Any

import pytest

from tflaunch.features.preload import warm_servers

pytestmark = pytest.mark.unit


@pytest.mark.parametrize("wrong", [[], {}, {"pid": "1"}, {"idle_left": -1.0}, {"modules": [1]}, {"memory_bytes": 2.5}])
def test_what_a_host_says_about_its_warm_servers_is_checked(wrong: Any) -> None:
    known = {"pid": 1, "python": "\x1b[1mpython", "modules": ["json"], "memory_bytes": 2, "uses": 3, "idle_left": 4.5}
    assert warm_servers.read_server("h1", known).python == r"\x1b[1mpython"
    with pytest.raises(ValueError, match=r"'\w+' must be|an object"):
        warm_servers.read_server("h1", {**known, **wrong} if wrong else wrong)
