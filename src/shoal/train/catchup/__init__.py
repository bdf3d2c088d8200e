"""Live catch-up: a newcomer receives the run's state while the others train, who wait only for the last updates."""
