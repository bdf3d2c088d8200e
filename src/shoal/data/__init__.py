"""Which worker trains on which sample: the user's loader, divided among the workers.

Reading order: `deal` (the arithmetic), `turn` and `order` (what comes when), `common` (reading the same on
every worker), `source/` (map-style, iterable-style, batches), `observer` and `loader` (what the script sees).
"""
