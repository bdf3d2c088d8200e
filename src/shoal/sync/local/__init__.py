"""Agree less often: every worker trains by itself for some steps, then replicas agree on parameters."""
