"""Replicas: processes on other machines that compute batches for one server."""
