"""docker-compose.yml as files: no engine is needed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from specs import REPOSITORY, made
from tflaunch.plan import lint
from tflaunch.spec import Address

pytestmark = pytest.mark.unit

SCHEMA = json.loads(Path(__file__).with_name("compose-spec.json").read_text())


def read() -> Any:
    """Return what docker-compose.yml says."""
    return yaml.safe_load((REPOSITORY / "docker-compose.yml").read_text())


def test_the_compose_file_keeps_to_the_compose_specification() -> None:
    """As the schema has it that Compose v2 goes by."""
    jsonschema.Draft7Validator(SCHEMA).validate(read())


def test_no_host_lets_in_passwords_and_no_launcher_trusts_strangers() -> None:
    """Keys only, and host keys are checked."""
    sshd = (REPOSITORY / "docker/sshd_config").read_text()
    assert "AuthenticationMethods publickey\nPasswordAuthentication no\n" in sshd
    assert "StrictHostKeyChecking yes" in (REPOSITORY / "docker/ssh_config").read_text()


def test_no_key_is_made_while_the_image_is_built() -> None:
    """They would be the same for everybody who has the image."""
    assert "ssh-keygen" not in (REPOSITORY / "docker/Dockerfile").read_text()


@pytest.mark.parametrize("profile", ["multi_worker", "parameter_server"])
def test_the_specs_of_the_compose_file_are_good(profile: str) -> None:
    """And every service that they name is there, in a profile with its launcher."""
    name = f"cluster_specs/compose_{profile}.json"
    spec = made(json.loads((REPOSITORY / name).read_text()))
    found = {role: (Address(where.removeprefix("dns:"), None),) for role, where in spec.discover.items()}
    spec = spec._replace(cluster={**spec.cluster, **found}, discover={})
    assert not lint.check(spec)
    services = read()["services"]
    (launcher,) = [service for service in services.values() if name in str(service["command"])]
    hosts = {address.host for addresses in spec.cluster.values() for address in addresses}
    assert set(launcher["depends_on"]) == hosts
    for host in launcher["depends_on"]:
        assert services[host].get("profiles", launcher["profiles"]) == launcher["profiles"]
