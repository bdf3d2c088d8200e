"""What a shard does with an update: a closed list, because no user code runs on a server."""
