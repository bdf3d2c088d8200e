"""The lowest layer: errors, ids, clock, events and the journal. Standard library, torch and msgspec only."""
