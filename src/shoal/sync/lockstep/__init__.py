"""Replicas agree in every step: the lock-step synchronizer, and two that also choose what travels first."""
