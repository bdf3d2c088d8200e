"""One thread for torch in the tests themselves: worlds of workers are forked from this process."""

import os

os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")

import torch
from hypothesis import settings

torch.set_num_threads(1)
settings.register_profile("busy", deadline=None)  # a busy machine is slow, and that is no fault
settings.load_profile("busy")
