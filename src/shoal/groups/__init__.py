"""Groups of workers: who am I, how many are we, small collectives; over shared memory, links or `torch.distributed`."""
