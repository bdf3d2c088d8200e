"""HOW replicas agree: one file per way."""
