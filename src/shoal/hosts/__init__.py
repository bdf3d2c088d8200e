"""Shared memory of the workers of one host: the arena, and the status board in it."""
