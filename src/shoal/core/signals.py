"""The signals that ask a run to stop, and blocks in which they wait."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


class StopAtOnce(KeyboardInterrupt):
    """An interrupt that asks for no checkpoint and no patience."""


@contextmanager
def as_interrupts() -> Iterator[None]:
    """All of these stop a run as tidily as Ctrl-C does; what is ignored (nohup) stays ignored."""
    heard = [number for number in STOPPING if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, _interrupt) for number in heard}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)


def _interrupt(number: int, frame: FrameType | None) -> None:
    # Ctrl-\ is for those who do not want to wait for a checkpoint.
    raise StopAtOnce if number == signal.SIGQUIT else KeyboardInterrupt


@contextmanager
def held_back() -> Iterator[None]:
    """No request to stop arrives inside; it waits for the end of the block."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def as_python_has_them() -> None:
    """In a fresh worker: the handlers and the mask that a script finds under `python`."""
    for number in STOPPING:
        if signal.getsignal(number) is not signal.SIG_IGN:
            default = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
            signal.signal(number, default)
    # The launcher forks inside `held_back`, and a mask is inherited.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPPING)
