"""Examine hosts before a run."""

from tflaunch_worker.feature import Feature

FEATURE = Feature(
    "tflaunch_worker.features.doctor.host_doctor:HostDoctor",
    calls=("examine", "leave_marks", "look_for_marks", "remove_marks"),
)
