"""Randomness: independent streams from one seed, and a way to swap one into the global generators."""

import hashlib
import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch


def mix(*parts: int | str) -> int:
    """A 63-bit seed that is a pure function of `parts`; equal parts give equal streams, on every machine."""
    # Type and separator keep (1, "2") and ("1", 2), and ("ab", "c") and ("a", "bc"), apart.
    text = "\x1f".join(f"{type(part).__name__}:{part}" for part in parts)
    # 63 bits: torch takes signed seeds of 64.
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") >> 1


def seed_all(seed: int) -> None:
    """Seed torch (every device), `random`, and numpy's global generator if the script uses numpy."""
    torch.manual_seed(seed)
    random.seed(seed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(seed % 2**32)


class RandomStream:
    """A private stream of the global CPU generators: code inside `swap_in` draws from it and nowhere else."""

    def __init__(self, seed: int) -> None:
        with _restored():
            seed_all_cpu(seed)
            self._state = capture()

    @contextmanager
    def swap_in(self) -> Iterator[None]:
        """Run a block on this stream's state, then put the script's own state back."""
        with _restored():
            restore(self._state)
            yield
            self._state = capture()


def seed_all_cpu(seed: int) -> None:
    """Like `seed_all`, without touching a device's generator."""
    torch.default_generator.manual_seed(seed)
    random.seed(seed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(seed % 2**32)


@contextmanager
def _restored() -> Iterator[None]:
    before = capture()
    try:
        yield
    finally:
        restore(before)


State = tuple[torch.Tensor, object, object]
"""State of the global CPU generators: torch's, `random`'s, and numpy's if it is used."""


def capture() -> State:
    numpy = sys.modules.get("numpy")
    return torch.get_rng_state(), random.getstate(), numpy.random.get_state() if numpy else None


def restore(state: State) -> None:
    torch.set_rng_state(state[0])
    random.setstate(state[1])  # type: ignore[arg-type]
    if state[2] is not None and "numpy" in sys.modules:
        sys.modules["numpy"].random.set_state(state[2])
