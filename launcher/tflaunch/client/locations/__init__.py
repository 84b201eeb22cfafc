"""The places where runs can live other than this machine: one module for each, imported for the runs that are there."""
