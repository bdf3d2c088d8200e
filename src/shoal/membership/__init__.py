"""Membership of a run: views, the coordinator that installs them, and each worker's side of the protocol."""
