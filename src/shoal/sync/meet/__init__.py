"""How payloads of all workers meet: gathered and decoded by everybody, or summed as they are."""
