"""Ways to add up a flat tensor over links: straight to everybody, by owners, round the ring."""
