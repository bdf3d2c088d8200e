"""What a launcher and a service between hosts say to each other, over a pair of sockets that only they hold.

    service ── ServiceReady(address) ──> launcher                     it listens
    launcher ── ServiceView ───────────> service                      who may talk to it, by which keys
    service ── MemberAccused ──────────> launcher                     a member has broken the protocol

and, with a replica (`service_replicas.py`):

    backup ── ReplicaReady ────────────> launcher                     it has the state, and every answer that was given
    launcher ── ReplicaPromoted ───────> backup                       the primary has ended: answer in its place
    launcher ── ReplicaAlone ──────────> primary                      no backup will come any more
    launcher ── ReplicaPartner ────────> both, between hosts          where the other one listens, and its key

A service believes the launcher alone about who the members are. Neither side ever waits for the other: a view that a
stopped service does not take in is said again later, or its successor is.
"""

import contextlib
import select
import socket
from typing import Annotated

import msgspec

from shoal.membership.protocol import MemberInfo, Text, printable
from shoal.membership.view import MOST_MEMBERS, Name, Names

LARGEST = 2 << 20
"""Bytes of one message: a view of all members there can be."""


class ServiceReady(msgspec.Struct, frozen=True, tag=True):
    address: Annotated[str, msgspec.Meta(max_length=120)]


class ServiceView(msgspec.Struct, frozen=True, tag=True):
    """The members of the newest view, and where each is reached."""

    generation: int = 0
    members: Names = ()
    infos: Annotated[tuple[MemberInfo, ...], msgspec.Meta(max_length=MOST_MEMBERS)] = ()

    @property
    def own(self) -> frozenset[str]:
        """Those of the machine the run began on; all, where none is left of it."""
        own = {member for member, info in zip(self.members, self.infos, strict=False) if not info.remote}
        return frozenset(own or self.members)

    @property
    def hosts(self) -> dict[str, str]:
        """Member -> its host; workers of other machines are never on that of the run's own, whatever they say."""
        facts = zip(self.members, self.infos, strict=False)
        return {m: f"{info.remote} {info.host_group}" if info.host_group else m for m, info in facts}


class MemberAccused(msgspec.Struct, frozen=True, tag=True):
    member: Name
    reason: Text


class ReplicaReady(msgspec.Struct, frozen=True, tag=True):
    pass


class ReplicaPromoted(msgspec.Struct, frozen=True, tag=True):
    term: Annotated[int, msgspec.Meta(ge=1)]
    """How often another process has taken over."""


class ReplicaAlone(msgspec.Struct, frozen=True, tag=True):
    pass


class ReplicaPartner(msgspec.Struct, frozen=True, tag=True):
    name: Annotated[str, msgspec.Meta(max_length=64)]
    address: Annotated[str, msgspec.Meta(max_length=120)]
    public: Annotated[str, msgspec.Meta(max_length=40)]


ReplicaWord = ReplicaReady | ReplicaPromoted | ReplicaAlone | ReplicaPartner
ServiceWord = ServiceReady | ServiceView | MemberAccused | ReplicaWord
_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[ServiceWord] = msgspec.msgpack.Decoder(ServiceWord)


class ServiceChannel:
    """One end. `over` is true once the other end is gone."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self._unsaid: ServiceView | None = None
        self.over = False
        # a message is sent whole or not at all, and a view of all members must fit
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, LARGEST)

    @classmethod
    def pair(cls) -> "tuple[ServiceChannel, ServiceChannel]":
        # keeps messages apart, and tells when the other end is gone
        launcher, service = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        return cls(launcher), cls(service)

    def say(self, word: ServiceWord) -> bool:
        """Whether it has left; never waits."""
        try:
            self._end.send(_encoder.encode(word), socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
        except BlockingIOError:
            return False
        except OSError:
            self.over = True
        return True

    def tell(self, view: ServiceView | None = None) -> None:
        """Say this view, or else the newest one that could not be said yet."""
        self._unsaid = view or self._unsaid
        if self._unsaid is not None and self.say(self._unsaid):
            self._unsaid = None

    def accuse(self, member: str, reason: str) -> None:
        self.say(MemberAccused(member, printable(reason)))

    def hear(self, seconds: float = 0.0) -> ServiceWord | None:
        """What has come; None: nothing within `seconds`."""
        poll = select.poll()  # select() refuses descriptors above 1023
        poll.register(self._end, select.POLLIN)
        if not poll.poll(int(1000 * seconds)):
            return None
        data = b""
        with contextlib.suppress(ConnectionResetError):
            data = self._end.recv(LARGEST)
        self.over = self.over or not data
        return _decoder.decode(data) if data else None

    def fileno(self) -> int:
        """For a poll: there is something to `hear`."""
        return self._end.fileno()

    def close(self) -> None:
        self._end.close()
