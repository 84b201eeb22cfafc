"""Shared test helpers: commands, hosts, fakes and checks."""
