"""Access to Kubernetes through kubectl: its commands, and the state of a run's pods."""
