"""WHEN replicas agree: one file per pace."""
