"""List the files that tasks have written, and send them."""

from tflaunch_worker.feature import Feature

FEATURE = Feature("tflaunch_worker.features.files.listed_files:FileListing", calls=("list_files", "read_listed_file"))
