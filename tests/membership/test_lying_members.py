"""A remote worker that lies to the coordinator costs itself its membership, and nobody else anything.

Thousands of well-formed messages of a real member, with one field or several changed, through the coordinator's own
code, while honest members train: it never fails, gives up nobody else, and lets newcomers in.
"""

import random
import sys

import pytest
from test_coordinator import beat, told
from test_remote_workers import admit, begun, guest, hello

from shoal.membership.coordinator import MembershipCoordinator
from shoal.membership.failure_detector import MembershipRules
from shoal.membership.log_entries import Effect, SendMessage
from shoal.membership.member import MemberState
from shoal.membership.protocol import (
    Heartbeat,
    InstallView,
    JoinRefused,
    JoinRequest,
    LeaseRenewal,
    LeaseRequest,
    LeaveRequest,
    MemberEvicted,
    ProposeAck,
    ProposeView,
    Report,
    SamplesLeased,
    SuspectMember,
)
from shoal.testing.hostile import changed, is_readable

HONEST, TICK = ("a", "b", "g1", "g2"), 0.1


def answer(coordinator: MembershipCoordinator, now: float = 0.0, **said: ProposeAck) -> list[Effect]:
    """All members of the proposal answer as honest ones do, but those that say something else."""
    assert coordinator.proposal is not None
    view, effects = coordinator.proposal.view, []
    for member in view.members:
        honest = ProposeAck(member=member, generation=view.generation, applied=7)
        effects += coordinator.hear(said.get(member, honest), now)
    return effects


def view_of(*members: str) -> MembershipCoordinator:
    coordinator = begun(*[member for member in members if member[0] != "g"])
    admit(coordinator, *[member for member in members if member[0] == "g"])
    return coordinator


def test_a_view_that_the_log_does_not_know_is_a_lie() -> None:
    coordinator = view_of("a", "g1")
    generation = coordinator.memory.generation
    effects = coordinator.hear(Heartbeat(member="g1", generation=generation, promised=2**53, applied=0), 1.0)
    assert set(told(effects, MemberEvicted)) == {"g1"}
    assert coordinator.memory.generation == generation + 1, "the view without it is the next one"
    coordinator.hear(Heartbeat(member="a", generation=generation, promised=2**53, applied=0), 1.0)
    assert coordinator.memory.generation < 2**40, "not even of one of the run's own"


@pytest.mark.parametrize("applied", [5, 9, 2**53])
def test_an_operation_that_nobody_else_can_have_completed_is_a_lie(applied: int) -> None:
    coordinator = view_of("a", "b", "g1")
    coordinator.hear(LeaveRequest(member="b", early=True), 1.0)
    assert coordinator.proposal is not None
    answer(coordinator, g1=ProposeAck(member="g1", generation=coordinator.proposal.view.generation, applied=applied))
    assert set(coordinator.memory.lost) == {"b", "g1"}
    answer(coordinator)
    assert coordinator.memory.installed.through == 7


def test_an_operation_is_not_complete_because_a_remote_worker_says_so() -> None:
    """One ahead of the others is possible, but then the others hold its result."""
    for formed, lost in ((0, {"b", "g1"}), (2, {"b"})):
        coordinator = view_of("a", "b", "g1")
        coordinator.hear(LeaveRequest(member="b", early=True), 1.0)
        assert coordinator.proposal is not None
        generation = coordinator.proposal.view.generation
        own = ProposeAck(member="a", generation=generation, applied=7, formed=formed)
        answer(coordinator, a=own, g1=ProposeAck(member="g1", generation=generation, applied=8))
        assert set(coordinator.memory.lost) == lost


def test_a_remote_worker_never_gives_its_state_to_the_runs_own() -> None:
    coordinator = view_of("a", "g1")
    hello(coordinator, "b")
    for member in ("a", "g1"):
        coordinator.hear(beat(member, coordinator.view.generation), 0.0)
    coordinator.tick(0.0)
    assert coordinator.proposal is not None
    coordinator.hear(LeaveRequest(member="a", early=True), 0.1)
    assert coordinator.memory.installed.donor != "g1"
    assert "g1" in coordinator.memory.lost


@pytest.mark.parametrize("step", [2**53, 0])
@pytest.mark.parametrize("period", [5e-324, 1e9])
def test_newcomers_enter_at_a_step_that_comes_whatever_a_remote_worker_says(step: int, period: float) -> None:
    coordinator = view_of("a", "g1")
    coordinator.hear(beat("a", coordinator.view.generation, step=10, period=0.1), 1.0)
    coordinator.hear(beat("g1", coordinator.view.generation, step=step, period=period), 1.0)
    hello(coordinator, "b", now=1.0)
    proposal = told(coordinator.tick(1.0), ProposeView)["b"]
    assert isinstance(proposal, ProposeView)
    assert 20 <= proposal.step <= 30


def test_a_remote_workers_silence_is_as_long_as_the_others_steps_allow() -> None:
    coordinator = view_of("a", "g1")
    coordinator.hear(beat("g1", coordinator.view.generation, period=1e9), 0.0)
    for tenth in range(1, 40):
        coordinator.hear(beat("a", coordinator.view.generation, period=0.1), tenth / 10)
        coordinator.tick(tenth / 10)
    assert set(coordinator.memory.lost) == {"g1"}


@pytest.mark.parametrize("step", [0, 30])
def test_a_remote_worker_that_beats_and_does_not_answer_is_given_up(step: int) -> None:
    coordinator = view_of("a", "g1")
    if step:
        hello(coordinator, "b")
        for member in ("a", "g1"):
            coordinator.hear(beat(member, coordinator.view.generation, step=10, period=0.1), 0.0)
        coordinator.tick(0.0)
    else:
        hello(coordinator, "b")
        coordinator.views.propose(0.0)
    for tenth in range(1, 130):
        now, proposal = tenth / 10, coordinator.proposal
        for member in ("a", "b", "g1"):
            coordinator.hear(beat(member, coordinator.view.generation), now)
            if proposal is not None and member != "g1" and member in proposal.view:
                blank, between = member == "b", bool(proposal.step)
                coordinator.hear(
                    ProposeAck(
                        member=member, generation=proposal.view.generation, applied=1, blank=blank, between=between
                    ),
                    now,
                )
        coordinator.tick(now)
    assert set(coordinator.memory.lost) == {"g1"}
    assert "did not answer" in coordinator.memory.lost["g1"]


def test_a_remote_worker_that_does_not_enter_a_view_is_given_up() -> None:
    coordinator = view_of("a", "g1")
    for tenth in range(1, 130):
        coordinator.hear(beat("a", coordinator.view.generation), tenth / 10)
        coordinator.hear(
            Heartbeat(member="g1", generation=0, promised=coordinator.memory.generation, applied=0), tenth / 10
        )
        coordinator.tick(tenth / 10)
    assert "did not enter" in coordinator.memory.lost["g1"]


@pytest.mark.parametrize(
    "change",
    [
        {"address": "tcp://nohost"},
        {"address": "tcp://10.0.0.9"},
        {"address": "tcp://10.0.0.9:99999"},
        {"address": "tcp://0.0.0.0:7000"},
        {"address": "tcp://[::1]:7000"},
        {"address": ""},
        {"public": ""},
        {"public": "#" * 40},
        {"address": guest("g1").address},
        {"public": guest("g1").public},
        {"host_group": "there"},
    ],
)
def test_who_cannot_be_reached_or_says_it_is_another_is_refused(change: dict[str, str]) -> None:
    coordinator = begun("a")
    coordinator.hear(JoinRequest(member="g1", info=guest("g1", host_group="there")), 0.0)
    effects = coordinator.hear(JoinRequest(member="g2", info=guest("g2", **change)), 0.0)
    assert set(told(effects, JoinRefused)) == {"g2"}
    assert set(coordinator.roster.statuses) == {"a", "g1"}


def test_a_remote_worker_stays_where_it_came_from() -> None:
    coordinator = view_of("a", "g1")
    coordinator.hear(JoinRequest(member="g1", info=guest("g1", address="tcp://10.0.0.3:1")), 0.0)
    assert set(coordinator.memory.lost) == {"g1"}


def test_a_remote_worker_cannot_say_that_the_training_is_over() -> None:
    """Else others of its kind would go on alone when the run's own are lost."""
    coordinator = view_of("a", "g1", "g2")
    coordinator.hear(LeaveRequest(member="g1"), 0.0)
    answer(coordinator)
    coordinator.hear(LeaveRequest(member="a", early=True), 0.0)
    assert set(coordinator.memory.lost) == {"a", "g1", "g2"}


class Trial:
    """Honest members that train with a coordinator, and a remote one, `g9`, that says anything."""

    def __init__(self, seed: int) -> None:
        self.chance, self.now, self.heard = random.Random(seed), 0.0, 0
        self.coordinator = MembershipCoordinator(MembershipRules(members=2), 0.0)
        self.members = {name: MemberState(name) for name in HONEST}
        self.liar, self.number, self.kept = MemberState("g9"), 9, list[Effect]()
        for name in (*HONEST, "g9"):
            self.hear(self.hello(name))
        self.steps = 0
        self.leased = 0
        """Batches that one of the run's own workers was given."""

    def hello(self, name: str) -> JoinRequest:
        return JoinRequest(member=name, info=guest(name)) if name[0] == "g" else JoinRequest(member=name)

    def hear(self, report: Report) -> None:
        """Effects reach all but the liar at once; it believes them too, and then says what it wants."""
        effects = self.coordinator.hear(report, self.now)
        self.deliver(effects)

    def deliver(self, effects: list[Effect]) -> None:
        for effect in effects:
            if not isinstance(effect, SendMessage):
                continue
            member = self.members.get(effect.member)
            if effect.member == self.liar.id:
                member = self.liar
            if member is not None:
                self.obey(member, effect.order)

    def obey(self, member: MemberState, order: object) -> None:
        match order:
            case LeaseRenewal():
                member.renew(order)
            case ProposeView():
                standing = member.propose(order)
                if standing is not None:
                    self.hear(standing)
            case InstallView():
                member.install(order)
                if member.blank:
                    member.filled(member.view)
            case SamplesLeased() if member.id == "a":
                self.leased += 1
                assert (order.ahead, bool(order.ranges)) == (0, True), order
            case MemberEvicted():
                assert member is self.liar, f"{member.id} was evicted: {order.reason}"

    def beats(self) -> None:
        for member in self.members.values():
            if member.view.generation and member.settled:
                standing = member.begin(self.steps)
                if standing is not None:
                    self.hear(standing)
            self.hear(member.beat(self.now, self.steps, 0.1))
            if member.id[0] != "g":
                self.hear(self.asks(member.id))

    def asks(self, name: str) -> LeaseRequest:
        """For a batch of a round that never ends."""
        return LeaseRequest(
            member=name, key=(0, 0, 0), round=0, pool=((0, 2**40),), batch=4, least=1, steps=2**30,
            number=self.steps, wants=True, waits=True,
        )  # fmt: skip

    def lie(self) -> None:
        """A message as a member makes it, with something changed; of itself, for others' ids are refused before."""
        liar, names = self.liar, [*HONEST, "g9", "zz"]
        honest: list[Report] = [
            liar.beat(self.now, self.steps, 0.1),
            liar._standing(),
            SuspectMember(member=liar.id, of=self.chance.choice(names)),
            self.asks(liar.id),
            self.hello(f"g{self.number}"),
        ]
        said = changed(self.chance.choice(honest), self.chance, names, keep=("member", "guest"))
        if is_readable(said, Report):
            self.heard += 1
            self.hear(said)

    def turn(self, lies: int) -> None:
        self.now += TICK
        self.steps += 1
        self.beats()
        for _ in range(lies):
            self.lie()
        self.deliver(self.coordinator.tick(self.now))
        if self.liar.id in self.coordinator.memory.lost:  # it comes again, as another
            self.number += 1
            self.liar = MemberState(f"g{self.number}")
            self.hear(self.hello(self.liar.id))

    def check(self) -> None:
        lost = self.coordinator.memory.lost
        assert not set(lost) & set(HONEST), lost
        assert self.coordinator.memory.generation < 20 * (self.number + 10), "generations went away with a lie"
        held = len(self.coordinator.suspicions)
        assert held <= len(self.coordinator.view) ** 2, f"{held} doubts are kept"
        assert sys.getsizeof(self.coordinator.views.effects) < 10_000


def play(seed: int, turns: int, lies: int) -> Trial:
    trial = Trial(seed)
    for _ in range(turns):
        trial.turn(lies)
    for _ in range(150):  # it beats, and says nothing more: whoever waits for it waits no longer
        trial.turn(0)
    trial.check()
    views = {member.view.generation for member in trial.members.values()}
    assert views == {trial.coordinator.view.generation}, "somebody was left behind"
    assert trial.leased > turns, "samples are given, whatever the liar says of them"
    assert set(HONEST) <= set(trial.coordinator.view.members), "the run's own and honest guests train on"
    return trial


def test_a_few_thousand_lies_cost_only_the_liar() -> None:
    trials = [play(seed, 50, 8) for seed in range(8)]
    assert sum(trial.heard for trial in trials) > 2_000
    assert all(trial.number > 10 for trial in trials), "a liar that is found out is evicted"


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("ten", range(10))
def test_a_hundred_thousand_lies(ten: int) -> None:
    assert sum(play(1000 * ten + seed, 100, 6).heard for seed in range(25)) >= 10_000
