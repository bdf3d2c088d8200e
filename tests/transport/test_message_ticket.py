"""A ticket's outcome: fixed once, by whoever comes first, and seen by every thread that waits."""

import threading

import pytest

from shoal.core.errors import DeadlineError, ShoalError
from shoal.transport.message_ticket import MessageTicket


def test_all_waiting_threads_return() -> None:
    ticket = MessageTicket("a message")
    waiting = [threading.Thread(target=ticket.wait, args=(30.0,)) for _ in range(4)]
    for thread in waiting:
        thread.start()
    ticket.end()
    for thread in waiting:
        thread.join(30.0)
    assert not any(thread.is_alive() for thread in waiting)
    ticket.wait(0.0)


def test_the_first_outcome_counts() -> None:
    ticket = MessageTicket("a message")
    ticket.end(ShoalError("the first"))
    ticket.end(ShoalError("the second"))
    ticket.arrived()
    with pytest.raises(ShoalError, match="the first"):
        ticket.wait(1.0)


def test_a_wait_ends_at_its_deadline_and_leaves_the_ticket_open() -> None:
    ticket = MessageTicket("a message")
    with pytest.raises(DeadlineError, match="a message has not arrived"):
        ticket.wait(0.01)
    assert not ticket.done.is_set()
    ticket.arrived()
    ticket.wait(1.0)
