"""Engines: what sums flat tensors and carries payloads, by shared memory, links or `torch.distributed` collectives."""
