"""A rebuilt loader keeps what the user asked for."""

import multiprocessing

import torch
from torch.utils.data import DataLoader

from shoal.data.source.rebuild import like

KEPT = ("num_workers", "pin_memory", "timeout", "worker_init_fn", "prefetch_factor", "persistent_workers")


def test_settings_are_carried_over():
    given = DataLoader(
        range(4),
        num_workers=2,
        pin_memory=True,
        timeout=7,
        worker_init_fn=print,
        multiprocessing_context=multiprocessing.get_context("spawn"),
        prefetch_factor=3,
        persistent_workers=True,
    )
    made = like(given, range(9), generator=torch.Generator(), batch_size=2)
    assert [getattr(made, name) for name in KEPT] == [getattr(given, name) for name in KEPT]
    assert made.multiprocessing_context is given.multiprocessing_context
    assert (made.dataset, made.batch_size) == (range(9), 2)
