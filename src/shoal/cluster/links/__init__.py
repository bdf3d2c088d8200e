"""Links: what workers of several hosts say to each other, with keys, numbers, checksums and deadlines."""
