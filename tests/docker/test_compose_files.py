"""docker-compose.yml as a file: no container engine is needed."""

import json
import subprocess
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from support.needs import need
from support.specs import REPOSITORY, made
from tflaunch.clusterspec.values import Address
from tflaunch.plan import lint

pytestmark = pytest.mark.unit

SCHEMA = json.loads(Path(__file__).with_name("compose-spec.json").read_text())


def read(name: str = "docker-compose.yml") -> Any:
    return yaml.safe_load((REPOSITORY / name).read_text())


@pytest.mark.parametrize("name", ["docker-compose.yml", "docker-compose.gpu.yml"])
def test_the_compose_file_keeps_to_the_compose_specification(name: str) -> None:
    """It matches the schema that Compose v2 uses."""
    jsonschema.Draft7Validator(SCHEMA).validate(read(name))


def test_the_image_is_built_once() -> None:
    """By one service that all others are started after: the image exists when they need it."""
    services = read()["services"]
    (builder,) = [name for name, service in services.items() if "build" in service]
    assert len({service["image"] for service in services.values()}) == 1
    assert all(builder in service["depends_on"] for name, service in services.items() if name != builder)


def test_only_the_launcher_has_the_key_that_opens_the_hosts() -> None:
    """Each private key is in a volume of one side; the other can read the public key but not replace it."""
    for name, service in read()["services"].items():
        mounts = {volume.partition(":")[0]: volume for volume in service["volumes"]}
        ours, theirs = ("launcher-key", "host-key") if "launcher" in name else ("host-key", "launcher-key")
        public = {"launcher-key": "authorized-keys", "host-key": "known-hosts"}
        assert ours in mounts
        assert theirs not in mounts
        assert not mounts[public[ours]].endswith(":ro")
        assert mounts[public[theirs]].endswith(":ro")


def test_docker_compose_takes_the_file_for_gpus() -> None:
    """It sets another image for all services, and GPUs for the worker."""
    need("docker-compose")
    names = [word for name in ("docker-compose.yml", "docker-compose.gpu.yml") for word in ("--file", name)]
    for profile in ("multi-worker", "parameter-server"):
        command = ["docker-compose", *names, "--profile", profile, "config"]
        shown = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True).stdout
        services = yaml.safe_load(shown)["services"]
        assert {service["image"] for service in services.values()} == {"tflaunch-gpu"}
        worker = services["worker"]
        assert worker["build"]["args"]["PACKAGES"] == "tensorflow[and-cuda]"
        (device,) = worker["deploy"]["resources"]["reservations"]["devices"]
        assert device["capabilities"] == ["gpu"]


def test_no_host_lets_in_passwords_and_no_launcher_trusts_strangers() -> None:
    """Keys only, and host keys are checked."""
    sshd = (REPOSITORY / "docker/sshd_config").read_text()
    assert "AuthenticationMethods publickey\nPasswordAuthentication no\n" in sshd
    assert "StrictHostKeyChecking yes" in (REPOSITORY / "docker/ssh_config").read_text()


def test_no_key_is_made_while_the_image_is_built() -> None:
    """All users of the image would share it."""
    assert "ssh-keygen" not in (REPOSITORY / "docker/Dockerfile").read_text()


@pytest.mark.parametrize("profile", ["multi_worker", "parameter_server"])
def test_the_specs_of_the_compose_file_are_good(profile: str) -> None:
    """And every service that they name exists, in a profile with its launcher."""
    name = f"cluster_specs/compose_{profile}.json"
    spec = made(json.loads((REPOSITORY / name).read_text()))
    found = {role: (Address(where.removeprefix("dns:"), None),) for role, where in spec.discover.items()}
    spec = spec.model_copy(update={"cluster": {**spec.cluster, **found}, "discover": {}})
    assert not lint.check_spec(spec)
    services = read()["services"]
    (launcher,) = [service for service in services.values() if name in str(service["command"])]
    hosts = {address.host for addresses in spec.cluster.values() for address in addresses}
    assert set(launcher["depends_on"]) == hosts
    for host in launcher["depends_on"]:
        assert services[host].get("profiles", launcher["profiles"]) == launcher["profiles"]
