"""Fork tasks from a process that has imported their modules (`preload`); optional, behind `pool`."""
