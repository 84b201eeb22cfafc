"""The cluster spec: its model, and how it is read from files. `model` needs pydantic, `values` does not."""
