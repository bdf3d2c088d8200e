"""Engines that sum flat tensors over all workers: one host's memory, and `torch.distributed` collectives."""
