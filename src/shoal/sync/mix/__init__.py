"""Replicas mix with one other at a time, and all of them meet now and then."""
