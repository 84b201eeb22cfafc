"""Fuzzers for every interface of tflaunch to the outside: no input ends in a traceback.

A border has a generator of cases and a check. A case is bytes and follows from a seed, so it can be played again:
``PYTHONPATH=tests python -m fuzz --border frames --seed 1 --first 417 --cases 1``. A case that failed once is kept in
``tests/fuzz/regressions/BORDER`` and is checked first from then on.
"""
