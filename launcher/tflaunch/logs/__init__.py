"""What tasks wrote: kept with its times, read again merged, folded, printed."""
