"""Running a job: what surrounds the pure core with clocks, processes, disks and people."""
