"""A group whose workers are on several hosts, connected by links."""

import atexit
import os
import struct
import sys
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import NoReturn, Protocol

from torch import Tensor

from shoal.core.errors import PayloadError, ShoalError
from shoal.groups.base import LARGEST_WORD, Check, WorkerGroup, as_bytes, deadline_seconds
from shoal.groups.host_workers import CopyHost, HostGroup, HostSharing, HostWorkers, SoleWorker, leaders
from shoal.groups.shared_memory import SharedGroup
from shoal.groups.state_streaming import STREAMING_VARIABLE, StateStreamClient, StateStreamServer
from shoal.groups.state_transfer import LinkStateTransfer, StateTransfer
from shoal.hosts.arena import SharedArena
from shoal.hosts.status_board import StatusBoard
from shoal.membership.elastic_session import ElasticSession
from shoal.membership.listener import ListenerStage, MembershipListener, OperationTransport
from shoal.membership.protocol import MemberInfo
from shoal.membership.session import FixedSession, MembershipSession, slot_of
from shoal.membership.view import MembershipView
from shoal.transport.collectives import AllGather, ChainBroadcast
from shoal.transport.endpoint import Book, BookEntry, LinkEndpoint, host_of
from shoal.transport.mesh import SILENCE, LinkMesh
from shoal.transport.messenger import Messenger
from shoal.transport.rate_limit import rate_limit_from_environment
from shoal.transport.tasks import CollectiveTask

_WORD = struct.Struct("<Id")
"""A channel, and a number."""
# Bytes of one member's confirmation.
MOST_WORDS = 1 << 16
TRUSTED_VARIABLE = "SHOAL_TRUSTED"
SERVER_RANK = 1 << 15
"""The first server's number among the peers of a mesh: above all slots of workers."""
# Shorter than `SILENCE`, because a doubt only asks the coordinator; it decides with what it hears itself.
DOUBT = 4.0
"""Seconds of a peer's silence after which the coordinator is told, which may then drop the member."""


class ConfirmationListener(Protocol):
    """Sends a number to all members whenever an operation is confirmed."""

    channel: int

    def word(self) -> float: ...

    def heard(self, words: Sequence[float | None]) -> None:
        """Take in what each member sent on this channel, in order of rank; None for members that sent nothing."""


class LinkedGroup(WorkerGroup, MembershipListener, OperationTransport):
    """Workers that know each other from an address book, or from the coordinator's views."""

    store: object = None
    """torchrun's store, if the workers found each other through it. Worker 0 may serve it, so it lives with the
    group."""

    local: HostSharing | None = None
    """The workers of this host, if hosts may have several."""
    leaders: Sequence[int] = ()
    """The first worker of each host."""
    _host_group: HostGroup | None = None
    _hosts: Mapping[str, str] = {}
    """Member of the view -> its host group, or its own name if it is alone."""

    def __init__(
        self,
        run: str,
        book: Book,
        slot: int,
        endpoint: LinkEndpoint,
        board: StatusBoard | None = None,
        session: ElasticSession | None = None,
        remote: bool = False,
        home: tuple[SharedArena, HostWorkers] | None = None,
        servers: Sequence[BookEntry] = (),
    ) -> None:
        """`home`: the memory shared with other workers of this machine, if members may change. `servers`: processes
        that are no members, reached by messages alone."""
        self.servers = {SERVER_RANK + number: server for number, server in enumerate(servers)}
        self.remote = remote
        self.confirmation_listeners: list[ConfirmationListener] = []
        self._told: AllGather | None = None
        """The confirmation that this worker holds the operation's result, as sent to all others; None before."""
        self.slot, self.seconds, self._channels = slot, deadline_seconds(), 0
        self.session: MembershipSession = session or FixedSession(slot, len(book))
        self.board = board or StatusBoard.private()
        self.board.enter(slot)
        # Without a coordinator silence ends the run, so more of it is forgiven.
        silence = DOUBT if session is not None else SILENCE
        allowance = rate_limit_from_environment()
        self.mesh = LinkMesh(run, book, slot, endpoint, self.board, silence=silence, allowance=allowance)
        # A script may end without `close`; its last chunks must still reach the others.
        atexit.register(self.close)
        # 2 until the first view tells the size, so that nothing takes this for a world of one worker.
        self.rank, self.size = slot, max(len(book), 2)
        self._addresses = {rank: entry.address for rank, entry in book.items()}
        """Of each member's links, by its slot."""
        if session is None:
            self.rank, self.size = slot, len(book)
            self.mesh.wait_for_peers(self.seconds)
        else:
            if home is not None:
                self._host_group = HostGroup(*home, slot, self.board, self.seconds, session)
                self.local = self._host_group
            self._follow(session, endpoint)

    def new_channel(self) -> int:
        """Return a channel for one engine; all workers make their engines in the same order."""
        self._channels += 1
        return self._channels

    def settle_hosts(self, local: SharedGroup) -> None:
        """Find out, in a collective call, which workers share a host."""
        leaders = {int(first) for first in self.gather(str(self.rank - local.rank).encode())}
        self.local, self.leaders = local, sorted(leaders)

    def _follow(self, session: ElasticSession, endpoint: LinkEndpoint) -> None:
        """Follow the views of a session."""
        public = endpoint.keys.public.decode() if endpoint.keys is not None else ""
        host_group = self._host_group.name if self._host_group is not None else ""
        session.attach(self, MemberInfo(endpoint.address, public, os.uname().nodename, self.remote, host_group))
        session.listeners.add(self, ListenerStage.group)
        self.mesh.watch_view(_SessionWatcher(session))

    def begin_plan(self, number: int) -> None:
        # chunks of earlier views are dropped, so the channels of the previous plan can be used again
        self._channels = 0
        self.confirmation_listeners.clear()
        if self._host_group is not None:
            self._host_group.regions.begin_plan(number)

    def free_old_plans(self) -> None:
        if self._host_group is not None:
            self._host_group.regions.free_old()

    def leave_view(self, generation: int) -> None:
        self.mesh.leave(generation)

    def on_view_change(self, view: MembershipView, newcomers: Sequence[str]) -> None:
        session = self.session
        assert isinstance(session, ElasticSession)
        self.rank, self.size, self._told = view.rank(session.member), len(view), None
        self.remote_count = sum(info.remote for info in session.install.infos)
        slots = [slot_of(member) for member in view.members]
        infos = zip(slots, view.members, session.install.infos, strict=True)
        members = {slot: BookEntry(p.address, p.public.encode(), p.host, member) for slot, member, p in infos}
        self._addresses = {slot: entry.address for slot, entry in members.items()}
        # Peers before the view: `reform` takes members from the book.
        self.mesh.set_peers({**members, **self.servers})
        self.mesh.reform(view.generation, slots)
        host_groups = [info.host_group for info in session.install.infos]
        self._hosts = {m: name or m for m, name in zip(view.members, host_groups, strict=True)}
        self.leaders = leaders(view, host_groups)
        if self._host_group is not None:
            self._host_group.enter(view, host_groups)

    def forget_server(self, number: int) -> None:
        """A server has ended, and its replica answers in its place: wait for nothing of it any more."""
        if self.servers.pop(SERVER_RANK + number, None) is not None:
            self.mesh.remove_peer(SERVER_RANK + number)

    def announce_result(self) -> None:
        assert isinstance(self.session, ElasticSession)
        if self._told is None:
            # Held before it is announced: peers may complete the operation the moment they hear it.
            self.session.hold()
            words = b"".join(_WORD.pack(listener.channel, listener.word()) for listener in self.confirmation_listeners)
            self._told = AllGather(words, MOST_WORDS)
            self.mesh.submit(self._told)

    def confirm_result(self) -> None:
        self.announce_result()
        task, self._told = self._told, None
        assert task is not None
        self.mesh.wait(task, self.seconds)
        # a remote worker may send anything: a rest that is no whole word is left out
        said = [dict(_WORD.iter_unpack(words[: len(words) // _WORD.size * _WORD.size])) for words in task.result]
        for listener in self.confirmation_listeners:
            listener.heard([words.get(listener.channel) for words in said])

    def _do(self, task: CollectiveTask) -> None:
        self.mesh.submit(task)
        self.mesh.wait(task, self.seconds)

    def gather(self, data: bytes, limit: int = LARGEST_WORD, check: Check | None = None) -> list[bytes]:
        return self.session.operate(lambda: self._gather(data, limit, check), lambda: None)

    def gather_inside(self, data: bytes, limit: int = LARGEST_WORD, check: Check | None = None) -> list[bytes]:
        return self._gather(data, limit, check)

    def _gather(self, data: bytes, limit: int, check: Check | None) -> list[bytes]:
        task = AllGather(data, limit)
        self._do(task)
        for member, said in zip(self.session.view.members, task.result, strict=True):
            # the workers of the run's own machine are believed
            if check is not None and self.session.remote(member) and member != self.session.member:
                self._checked(member, said, check)
        return task.result

    def _checked(self, member: str, said: bytes, check: Check) -> None:
        """Check the data before any member completes the gather, so that it can be repeated without a bad member."""
        try:
            check(said)
        except Exception as error:  # noqa: BLE001  (whatever a reader trips over, it is what this member said)
            self.session.blame(member, PayloadError(f"{member}: {error}"))

    def broadcast(self, tensors: Sequence[Tensor], givers: Sequence[str] = ()) -> None:
        self.session.operate(lambda: self._broadcast(tensors, self.giver(givers)), lambda: None)

    def _broadcast(self, tensors: Sequence[Tensor], root: int) -> None:
        for tensor in tensors:
            staged = tensor.detach().cpu().contiguous()  # links send and receive host memory, in one run
            self._do(ChainBroadcast(as_bytes(staged).numpy(), root))
            if self.rank != root and staged.data_ptr() != tensor.data_ptr():
                tensor.detach().copy_(staged)

    @cached_property
    def transfer(self) -> StateTransfer:
        return LinkStateTransfer(self.mesh)

    @property
    def messenger(self) -> Messenger:
        return self.mesh.messenger

    @property
    def copy_host(self) -> CopyHost:
        return self.local or SoleWorker()

    def datagram_hosts(self) -> dict[str, str]:
        return {member: host_of(self._addresses[slot_of(member)]) for member in self.session.view.members}

    def hosts_of_members(self) -> dict[str, str]:
        return dict(self._hosts)

    def link_estimates(self) -> dict[int, tuple[float | None, float | None]]:
        estimates = {rank: self.mesh.link(rank).out.estimate for rank in self.mesh.view.others}
        return {rank: (each.rate, each.rtt) for rank, each in estimates.items()}

    def state_stream_server(self) -> StateStreamServer | None:
        return StateStreamServer(self.mesh, self.session) if isinstance(self.session, ElasticSession) else None

    def state_stream_client(self) -> StateStreamClient | None:
        wanted = os.environ.get(STREAMING_VARIABLE, "1") != "0"
        return (
            StateStreamClient(self.mesh, self.session) if wanted and isinstance(self.session, ElasticSession) else None
        )

    def close(self) -> None:
        """Close the mesh at exit: the last chunks may still be on their way when the script ends."""
        atexit.unregister(self.close)
        # `last_value` is set once the interpreter has printed an error that ends the script.
        self.mesh.close("failed" if getattr(sys, "last_value", None) is not None else "ended")


class _SessionWatcher:
    """What a mesh asks of a session."""

    def __init__(self, session: ElasticSession) -> None:
        self._session = session

    @property
    def disturbed(self) -> bool:
        return self._session.disturbed

    def doubt(self, peers: Mapping[str, bool]) -> None:
        self._session.agent.reports.doubt(peers)

    def late(self, member: str, reason: str) -> None:
        if self._session.remote(member):  # for the run's own workers the launcher and their beats tell
            self._session.agent.reports.accuse(member, reason, late=True)

    def blame(self, member: str, error: ShoalError) -> NoReturn:
        self._session.blame(member, error)


def trusted() -> bool:
    """Return whether the user has declared the network between the hosts to be private."""
    return os.environ.get(TRUSTED_VARIABLE, "") not in ("", "0")
