"""Ways a worker comes to be: alone, forked by `shoal run`, or started by torchrun. `find` tells which it was."""
