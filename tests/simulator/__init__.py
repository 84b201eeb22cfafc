"""The real supervisor, sessions and agents in a world of simulated hosts, links, processes and clocks.

A seed determines a history: nothing in it depends on the machine, so a failing seed fails again.
"""
