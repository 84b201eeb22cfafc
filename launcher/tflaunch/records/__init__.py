"""Runs as anybody sees them later or from elsewhere: by the directory of each."""
