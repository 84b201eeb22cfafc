"""Real trainings under real faults: drawn from a seed, injected by root, and judged without any code of tflaunch.

`python -m chaos --minutes 5` plays drills; docs/reliability.md describes them.
"""
