"""Measuring: plans against each other and against PyTorch's own tools, and what models cost and give."""
