"""What `diff` prints with --json."""

from __future__ import annotations

from collections.abc import Sequence

from tflaunch.cli.json_output import Output
from tflaunch.features.records.run_diff import Difference

DIFF = Output(Sequence[Difference])
