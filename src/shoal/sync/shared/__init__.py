"""One copy of the parameters in the shared memory of a host."""
