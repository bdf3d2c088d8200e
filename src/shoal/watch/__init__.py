"""Viewing: reads what the workers recorded, sums it up, draws it, compares it. Emits nothing."""
