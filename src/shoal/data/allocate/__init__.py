"""Allocators, which decide which worker trains which samples of a pass: one file per method."""
