"""What `warm` prints with --json."""

from __future__ import annotations

from collections.abc import Sequence

from tflaunch.cli.json_output import Output
from tflaunch.features.warm.warm_servers import WarmServer

WARM = Output(Sequence[WarmServer])
