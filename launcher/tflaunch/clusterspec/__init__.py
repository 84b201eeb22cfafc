"""Model and loader of the cluster spec: `model` needs pydantic, `values` does not."""
