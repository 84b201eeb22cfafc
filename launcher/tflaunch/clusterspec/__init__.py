"""The cluster spec: its model and loader. `model` needs pydantic, `values` does not."""
