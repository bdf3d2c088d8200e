"""Ways to write gradients as fewer bytes: one published method per file."""
