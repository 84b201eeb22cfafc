"""Every border, with inputs that no well-behaved program would send."""

import pytest

from fuzz import borders


@pytest.mark.parametrize("name", [*borders.MODULES, *borders.SMALL])
def test_hostile_input(name: str) -> None:
    """What comes from outside is a checked value, or one printable sentence; its module says what else must hold."""
    borders.check_all(name)
