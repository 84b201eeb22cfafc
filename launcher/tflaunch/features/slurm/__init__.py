"""Run jobs of Slurm, and on the nodes that Slurm has given."""

from __future__ import annotations

from tflaunch.rooms import Engine, Location, Room

ROOM = Room(
    fields=("slurm",),
    engines={"slurm": Engine("as a Slurm job", submit="tflaunch.features.slurm.submission:submit_spec")},
    options="tflaunch.features.slurm.options:OPTIONS",
    locations=(Location(("slurm.json",), "tflaunch.features.slurm.location:find_slurm_run"),),
    discover={"slurm": "tflaunch.features.slurm.discovery:Slurm"},
    programs={"supervise": "tflaunch.features.slurm.supervise:supervise"},
)
