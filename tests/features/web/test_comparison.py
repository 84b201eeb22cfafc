"""What the page is told of the differences between runs."""

from __future__ import annotations

import pytest

from support.launch import Launch
from support.web_pages import Server, newest

pytestmark = pytest.mark.web

SECRETS = ("correct-horse-battery", "staple-horse-battery")


def test_a_difference_between_secrets_does_not_tell_them(server: Server, place: Launch) -> None:
    """In a variable, or in a command; that they differ is told."""
    runs = []
    for number, secret in enumerate(SECRETS):
        command = ["true", f"--password={secret}"]
        spec = place.spec(
            f"secret{number}.json", cluster={"worker": 1}, strategy="none", command=command, env={"API_KEY": secret}
        )
        assert place.up(spec).returncode == 0
        runs.append(newest(place, f"secret{number}"))
    answer = server.ask("GET", "/api/compare?" + "&".join(f"run={run}" for run in runs))
    rows = {row["name"]: row["values"] for row in answer.data["differences"]}
    assert rows["tasks.worker:0.env.API_KEY"] == ["***", "***"]
    assert not any(secret in answer.body for secret in SECRETS)
