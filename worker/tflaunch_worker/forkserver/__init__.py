"""Fork tasks from a process that has already imported their modules (`preload`); optional, used through `pool`."""
