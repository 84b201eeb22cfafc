"""The Python API: what `import tflaunch` gives to programs."""
