"""Messages, hints, summaries and status of a run. Pure; decides nothing."""
