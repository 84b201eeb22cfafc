"""Receive the user's code."""

from __future__ import annotations

from tflaunch_worker.feature import Feature

FEATURE = Feature(
    "tflaunch_worker.features.code.received_code:Offer", calls=("offer_files", "write_file", "remove_code")
)
