"""Measures plans against each other and against PyTorch's own tools: real runs, in turns, with spread."""
