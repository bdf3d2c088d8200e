"""Ways a worker is started: by hand, forked by `shoal run`, or by torchrun. `find` tells which it was."""
