"""How the payloads of all workers become one sum: summed as they are, gathered and decoded, or in two stages."""
