"""One thread for torch in the tests themselves: worlds of workers are forked from this process."""

import os

os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")

import torch

torch.set_num_threads(1)

from hypothesis import settings

settings.register_profile("busy", deadline=None)  # a busy machine is slow, and that is no fault
settings.load_profile("busy")
