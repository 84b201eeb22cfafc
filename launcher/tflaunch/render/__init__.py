"""Render a plan for other engines: one module per engine; nothing is started."""
