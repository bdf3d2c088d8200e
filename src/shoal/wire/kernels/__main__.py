"""`python -m shoal.wire.kernels`: compile every kernel now, so that no later process pays for it."""

import sys

from shoal.wire import kernels

if __name__ == "__main__":
    names = kernels.warm()
    how = "compiled" if kernels.fast() else "plain, for numba is not installed"
    sys.stdout.write(f"{len(names)} kernels, {how}\n")
