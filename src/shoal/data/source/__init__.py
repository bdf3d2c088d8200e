"""Where batches come from: one file per kind of loader the user may give."""
