"""Machines that are kept warm between runs: a server where runs are started, an agent on each machine."""
