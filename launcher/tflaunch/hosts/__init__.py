"""Hosts: links to their agents, and the sessions that speak over them."""
