"""Parameter servers: shards of the parameters to which workers push updates, and whose values they pull."""
