"""What every messenger must do, whatever carries it: once and in order, credit, calls, members that come and go."""

import threading
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

import numpy as np
import pytest
from forked import soon
from meshes import WAIT, kill

from shoal.core.errors import DeadlineError, PayloadError, PeerLost, ShoalError, UsageError
from shoal.transport.messenger import CallFailed, CallReply, Messenger, ReceivedMessage


class Member(Protocol):
    """One of several inside this process."""

    @property
    def messenger(self) -> Messenger: ...

    @property
    def loop(self) -> Any: ...

    def set_peers(self, book: Any) -> None:
        """These are the members from now on."""


class Received:
    """A handler that remembers, and answers with what it got; `hold` keeps it in the middle of a message."""

    def __init__(self) -> None:
        self.messages: list[ReceivedMessage] = []
        self.free, self.inside = threading.Event(), threading.Event()
        self.free.set()

    def __call__(self, message: ReceivedMessage) -> CallReply:
        self.inside.set()
        assert self.free.wait(WAIT)
        self.messages.append(message)
        return CallReply(b"re " + message.head, [array * 2 for array in message.arrays])

    @contextmanager
    def held(self) -> Iterator[None]:
        self.free.clear()
        try:
            yield
        finally:
            self.free.set()

    @property
    def heads(self) -> list[bytes]:
        return [message.head for message in self.messages]


def serve(mesh: Member, port: str = "port", credit: int = 8, **more: object) -> Received:
    received = Received()
    mesh.messenger.serve(port, received, credit, **more)
    return received


class MessengerCase:
    """Subclasses say how messages are carried."""

    def members(self, size: int) -> AbstractContextManager[list[Any]]:
        """`size` of them that know each other, named "0", "1" and so on."""
        raise NotImplementedError

    def book(self, member: Any) -> Mapping[int, Any]:
        """What `set_peers` takes: all members, by rank."""
        raise NotImplementedError

    def test_what_is_pushed_arrives_once_and_in_order(self) -> None:
        with self.members(2) as made:
            received = serve(made[1], credit=3)
            arrays = [np.arange(size, dtype=np.int32) for size in (0, 1, 7, 200_000, 16, 1_500_000, 3)]
            tickets = [made[0].messenger.push("1", "port", f"{n}".encode(), [a]) for n, a in enumerate(arrays)]
            for ticket in tickets:
                ticket.wait(WAIT)
            assert soon(WAIT, lambda: received.heads == [f"{n}".encode() for n in range(len(arrays))])
            for message, array in zip(received.messages, arrays, strict=True):
                assert np.array_equal(message.arrays[0], array)

    def test_a_handler_that_sleeps_holds_up_no_other_port(self) -> None:
        with self.members(2) as made:
            slow = serve(made[1], "slow", credit=2)
            serve(made[1], "quick")
            with slow.held():
                block = np.zeros(3_000_000, np.uint8)
                tickets = [made[0].messenger.push("1", "slow", f"{n}".encode(), [block]) for n in range(6)]
                assert slow.inside.wait(WAIT)
                for ticket in tickets[:2]:
                    ticket.wait(WAIT)
                assert made[0].messenger.call("1", "quick", b"x", [block], deadline=WAIT).head == b"re x"
                assert not any(ticket.done.is_set() for ticket in tickets[2:]), "they wait at the sender"
            for ticket in tickets:
                ticket.wait(WAIT)
            assert soon(WAIT, lambda: slow.heads == [f"{n}".encode() for n in range(6)])

    def test_a_full_port_stops_its_sender_and_no_other_one(self) -> None:
        with self.members(3) as made:
            received = serve(made[0], credit=1)
            with received.held():
                tickets = [made[1].messenger.push("0", "port", f"{n}".encode()) for n in range(3)]
                assert received.inside.wait(WAIT)
                made[2].messenger.push("0", "port", b"other").wait(WAIT)
                assert not tickets[2].done.is_set()
            for ticket in tickets:
                ticket.wait(WAIT)
            assert soon(WAIT, lambda: sorted(received.heads) == [b"0", b"1", b"2", b"other"])

    def test_what_waits_for_a_port_is_superseded_and_arrives_when_it_is_served(self) -> None:
        with self.members(2) as made:
            tickets = [made[0].messenger.push("1", "port", f"{n}".encode(), supersedes="weights") for n in range(50)]
            assert soon(WAIT, lambda: made[1].loop.peers[0].message_in is not None), "a greeting came"
            received = serve(made[1])
            for ticket in tickets:
                ticket.wait(WAIT)
            assert soon(WAIT, lambda: received.heads[-1:] == [b"49"])
            assert len(received.heads) + sum(ticket.superseded for ticket in tickets) == 50

    def test_a_member_that_is_given_up_ends_calls_and_begins_anew_if_it_comes_back(self) -> None:
        """Its link is closed here and open there: nothing is delivered twice, and what follows gets through."""
        with self.members(3) as made:
            received = [serve(mesh) for mesh in made]
            made[0].messenger.call("1", "port", b"before", deadline=WAIT)
            made[1].messenger.call("0", "port", b"before", deadline=WAIT)
            book, errors = self.book(made[0]), []
            with received[1].held():

                def call() -> None:
                    try:
                        made[0].messenger.call("1", "port", b"during", deadline=WAIT)
                    except PeerLost as error:
                        errors.append(str(error))

                caller = threading.Thread(target=call)
                received[1].inside.clear()
                caller.start()
                assert received[1].inside.wait(WAIT)
                made[0].set_peers({rank: entry for rank, entry in book.items() if rank != 1})
                caller.join(WAIT)
            assert "no member any more" in errors[0]
            with pytest.raises(PeerLost, match="1 is no member"):
                made[0].messenger.call("1", "port", deadline=WAIT)
            made[0].set_peers(book)
            assert made[1].messenger.call("0", "port", b"after", deadline=WAIT).head == b"re after"
            assert made[0].messenger.call("1", "port", b"after", deadline=WAIT).head == b"re after"
            assert received[0].heads == [b"before", b"after"]
            assert received[1].heads == [b"before", b"during", b"after"]

    def test_a_call_that_comes_to_nothing_says_why(self) -> None:
        def fail(message: ReceivedMessage) -> CallReply:
            if message.head == b"unsendable":
                return CallReply(b"", [np.zeros(1, complex)])
            raise ValueError("no such layer")

        with self.members(2) as made:
            made[1].messenger.serve("failing", fail, 4)
            caller = made[0].messenger
            with pytest.raises(CallFailed, match="to port failing of 1 failed there: ValueError: no such layer"):
                caller.call("1", "failing", deadline=WAIT)
            with pytest.raises(CallFailed, match="complex128 cannot be sent"):
                caller.call("1", "failing", b"unsendable", deadline=WAIT)
            with pytest.raises(DeadlineError, match="port nowhere of 1 has had no reply"):
                caller.call("1", "nowhere", deadline=0.01)
            with pytest.raises(PeerLost, match="7 is no member"):
                caller.call("7", "failing", deadline=WAIT)
            with pytest.raises(UsageError, match="1 to 32 characters"):
                caller.push("1", "")
            with pytest.raises(UsageError, match="served already"):
                made[1].messenger.serve("failing", fail, 4)
            with pytest.raises(UsageError, match="credit of 0"):
                made[1].messenger.serve("other", fail, 0)
            assert soon(WAIT, lambda: not made[0].loop.exchange.calls)
            assert not made[0].loop.suspects

    def test_a_call_whose_deadline_is_over_holds_nothing_up(self) -> None:
        """Whether it had left by then or not."""
        with self.members(2) as made:
            received = serve(made[1], credit=1)
            with received.held():
                with pytest.raises(DeadlineError):
                    made[0].messenger.call("1", "port", b"answered late", deadline=0.0)
                ticket = made[0].messenger.push("1", "port", b"next")
                made[0].messenger.push("1", "port", b"last")
            ticket.wait(WAIT)
            assert soon(WAIT, lambda: received.heads[-1:] == [b"last"])
            assert received.heads in ([b"next", b"last"], [b"answered late", b"next", b"last"])

    def test_a_handler_of_the_communication_thread_may_not_call(self) -> None:
        with self.members(2) as made:
            serve(made[0])

            def call_back(message: ReceivedMessage) -> CallReply:
                return made[1].messenger.call("0", "port", deadline=WAIT)

            made[1].messenger.serve("here", call_back, 1, threaded=False)
            made[1].messenger.serve("thread", call_back, 1)
            with pytest.raises(CallFailed, match="serve it with a thread"):
                made[0].messenger.call("1", "here", deadline=WAIT)
            assert made[0].messenger.call("1", "thread", deadline=WAIT).head == b"re "

    def test_only_those_who_are_admitted_may_send(self) -> None:
        with self.members(3) as made:
            received = serve(made[0], senders=())
            tickets = [made[rank].messenger.push("0", "port", f"{rank}".encode()) for rank in (1, 2)]
            assert soon(WAIT, lambda: all(made[0].loop.peers[rank].message_in is not None for rank in (1, 2)))
            made[0].messenger.admit("port", "2")
            tickets[1].wait(WAIT)
            assert soon(WAIT, lambda: received.heads == [b"2"])
            assert not tickets[0].done.is_set()

    def test_what_a_handler_cannot_read_makes_its_sender_suspected(self) -> None:
        def refuse(message: ReceivedMessage) -> None:
            raise PayloadError("not a gradient")

        with self.members(3) as made:
            made[0].messenger.serve("port", refuse, 1)
            with pytest.raises(CallFailed, match="not a gradient"):
                made[1].messenger.call("0", "port", deadline=WAIT)
            assert soon(WAIT, lambda: set(made[0].loop.suspects) == {1})
            assert "not a gradient" in made[0].loop.suspects[1]

    def test_the_end_of_a_worker_ends_its_own_calls(self) -> None:
        with self.members(2) as made:
            received = serve(made[1])
            with received.held():
                errors: list[ShoalError] = []

                def call() -> None:
                    try:
                        made[0].messenger.call("1", "port", deadline=WAIT)
                    except ShoalError as error:
                        errors.append(error)

                caller = threading.Thread(target=call)
                caller.start()
                assert received.inside.wait(WAIT)
                kill(made[0])
                caller.join(WAIT)
                assert "the communication thread failed" in str(errors[0])
                with pytest.raises(ShoalError, match="has ended"):
                    made[0].messenger.push("1", "port")
