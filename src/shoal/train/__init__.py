"""What the user's script touches: `start`, the run, and what `join` gives back."""
