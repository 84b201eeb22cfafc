"""The supervisor: the loop around the pure core, with clocks, processes, files and sockets."""
