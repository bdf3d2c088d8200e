"""Follows the plan of the view: builds its exchange and synchronizer for everything that is joined, between two steps.

    a view has another plan (all members stand before the same step, or have no state yet)
        settle -> take the state -> memory and channels of this plan's number -> build -> open -> give the state

The launcher has started the servers of a new plan before its view is made, and ends those of the plan before after it;
the values of a shard are those that all workers hold then. Precision and samples are not touched. Residuals go on if
the new codec has them; else each worker adds its own to its next gradient, so that the sum over workers stays what it
was. What else a codec remembers (a momentum of its own, factors) is dropped where the new one has no place for it, and
named.

Between plans that compress gradients and plans that compress changes of parameters residuals are dropped too: what
waits is a part of something else. From a pace under which workers make steps of their own to every(1) all optimizers
take over worker 0's state. What is left of a pass is dealt anew, statically or by leases (`train/leased_rounds.py`).
"""

import sys
import time
from collections.abc import Sequence
from functools import partial

from shoal.core.events import PlanSwitched
from shoal.groups.base import WorkerGroup
from shoal.membership.listener import ListenerStage
from shoal.membership.session import slot_of
from shoal.membership.view import MembershipView
from shoal.plan.plan import Plan
from shoal.plan.switching import check_switch, keeps_own_optimizers
from shoal.plan.terms import AllReduceTerm, AsyncTerm
from shoal.sync.engine.chooser import EngineChooser
from shoal.sync.server.connection import ServerConnection
from shoal.sync.server.sum_engine import ServerEngines
from shoal.sync.state import State, StateTensor
from shoal.train.balance import ShareBalancer
from shoal.train.build import build_exchange
from shoal.train.checkpoint.coordinator import CheckpointCoordinator
from shoal.train.joined import JoinedModels
from shoal.train.kernel_loading import KernelLoader
from shoal.train.progress import StepProgress
from shoal.train.servers import connect_servers, why_servers_stay
from shoal.train.state import adopt_state
from shoal.train.state_check import check_states
from shoal.train.synchronizers import build_synchronizer
from shoal.wire.redeal import folded

KINDS = {
    "residual": "residuals",
    "velocity": "the codec's momentum",
    "outer": "the outer optimizer's momentum",
    "round": "the length of rounds that local(auto) had chosen",
    "q": "factors of lowrank",
    "guard": "how far the guard had tightened",
    "auto": "what wire(auto) had chosen",
}
"""Names of state begin with these; what they are in words."""
UNREPEATABLE = "this plan cannot repeat a step without it"


class PlanSwitcher:
    """Of one worker; `plan` is the one it trains by."""

    def __init__(
        self,
        plan: Plan,
        group: WorkerGroup,
        engines: EngineChooser,
        seed: int,
        progress: StepProgress,
        servers: str = "",
    ) -> None:
        """`servers`: the folder of this host's server processes."""
        self._servers = servers
        self._moved = 0, 0
        """Bytes that went to servers of earlier plans, and came from them."""
        self.plan, self._first = plan, plan
        self._group, self._engines, self._seed, self._progress = group, engines, seed, progress
        self._number = 0
        self._requested = self._unsaid = ""
        """The plan that was asked for here, and whether others do not know yet."""
        self._frees = False
        self._kernels = KernelLoader(group.seconds)
        self._optimizers_differ = False
        """Whether workers have come from local rounds to a plan under which their optimizers must be equal."""

    def request(self, plan: Plan) -> None:
        """Ask for a switch; refuses what this run cannot be switched to, before anybody hears of it."""
        for warning in check_switch(self.plan, plan, self._group.size, why_servers_stay(self._group)):
            self._progress.warn(warning)
        text = str(plan)
        if text == (self._requested or str(self.plan)):
            return
        if self._group.size == 1 and not self._group.session.elastic:  # nothing is exchanged, and nobody has to agree
            before, self.plan, self._number = self.plan, plan, self._number + 1
            self._tell(before, self._progress.step + self._progress.stepped, [], [])
            return
        if not self._group.session.elastic:  # says that this cannot be
            self._group.session.request_plan(text)
        self._kernels.begin(text, self._group.size)
        self._requested = self._unsaid = text
        self._prepare()

    def _prepare(self) -> None:
        """Ask once kernels are loaded; and get ready for a plan that others have asked for."""
        if self._unsaid and self._kernels.is_ready:
            self._group.session.request_plan(self._unsaid)
            self._unsaid = ""
        proposed = self._group.session.proposed_plan
        if proposed and proposed != str(self.plan) and not self._unsaid:
            self._kernels.begin(proposed, self._group.size)

    def follow(
        self,
        view: MembershipView,
        joined: list[JoinedModels],
        balancer: ShareBalancer | None,
        keeper: CheckpointCoordinator | None,
    ) -> bool:
        """A view is there: if its plan is another one, train by it from the next step on. Returns whether it is."""
        if view.switches == self._number:
            return False
        before, self.plan = self.plan, Plan.parse(view.plan) if view.plan else self._first
        self._number, self._requested, self._frees = view.switches, self._unsaid, True
        session, group = self._group.session, self._group
        self._kernels.finish()
        group.begin_plan(view.switches)
        # engines and aggregators of the plan before; the new ones add themselves when they are built
        session.listeners.remove_all(ListenerStage.exchange)
        self._engines.by = self.plan.exchange.algorithm if isinstance(self.plan.exchange, AllReduceTerm) else "auto"
        servers = self._connection
        if servers is not None:
            self._moved = servers.sent, servers.got
        self._engines.servers = connect_servers(self.plan, group, self._servers, self._number)
        if (found := self._connection) is not None:
            found.sent, found.got = self._moved
        states = [self._replace(each) for each in joined]
        if servers is not None:
            servers.close()
        # the new plan may be able to repeat a step
        session.rigid = "" if session.rigid == UNREPEATABLE else session.rigid
        if any(not each.alone and not each.exchange.retryable for each in joined):
            session.forbid_loss(UNREPEATABLE)
        # under an unchanged term the shares that were measured stay
        if balancer is not None and self.plan.balance != before.balance:
            balancer.choose(self.plan.balance.shares, {slot_of(member): member for member in view.members})
        if keeper is not None:
            keeper.set_plan(str(self.plan))
        if session.member not in session.fresh:  # a newcomer has not trained by another
            carried, dropped = sort_kinds(states)
            if isinstance(before.pace, AsyncTerm) and before.pace.rule == "adagrad":
                dropped.append("squares of adagrad at the servers")
            self._tell(before, self._progress.step + self._progress.stepped, carried, dropped)
            self._optimizers_differ |= keeps_own_optimizers(before)
        self._optimizers_differ &= not keeps_own_optimizers(self.plan)
        return True

    @property
    def _connection(self) -> ServerConnection | None:
        """To the servers of the plan, if it has some."""
        servers = self._engines.servers
        return servers.connection if isinstance(servers, ServerEngines) else None

    def agree_on_optimizers(self, joined: Sequence[JoinedModels]) -> None:
        """After a switch from local(…) to every(1): all take over worker 0's. A collective call, between two steps."""
        if not self._optimizers_differ:
            return
        self._optimizers_differ = False
        for each in joined:
            members = each.members
            check = partial(check_states, parameters=members.parameters)
            adopt_state(self._group, [], members.optimizers, [], stateful=members.stateful, check=check)

    def _replace(self, joined: JoinedModels) -> tuple[State, State]:
        optimizers, observer = joined.members.optimizers, joined.exchange.observer
        observer.begin_plan()
        more = (optimizers, observer, joined.members, self._progress.warn)
        exchange = build_exchange(self.plan, self._group, self._engines, self._seed, *more)
        synchronizer = build_synchronizer(self.plan, exchange, self._engines, joined.members, self._seed)
        return joined.replace(exchange, synchronizer)

    def _tell(self, before: Plan, step: int, carried: list[str], dropped: list[str]) -> None:
        plan = str(self.plan)
        self._progress.sink.emit(
            PlanSwitched(
                at=time.time(),
                step=step,
                number=self._number,
                plan=plan,
                before=str(before),
                carried=carried,
                dropped=dropped,
            )
        )
        if self._group.rank == 0:
            left = f"; {', '.join(dropped)} did not carry over" if dropped else ""
            sys.stderr.write(f"shoal: from step {step} on the plan is '{plan}'{left}\n")

    def step_ended(self) -> None:
        """A step is complete, so all members train by this plan: the memory of the one before is free."""
        self._prepare()
        if self._frees:
            self._frees = False
            self._group.free_old_plans()


def sort_kinds(states: list[tuple[State, State]]) -> tuple[list[str], list[str]]:
    """Return which kinds of state have carried over, and which have not, from pairs of before and after."""
    carried, dropped = set[str](), set[str]()
    for before, after in states:
        values = folded({name: one.values for name, one in before.items()})
        for name, tensor in values.items():
            kind = name.partition(".")[0]
            if bool(tensor.any()):
                (carried if _fits(after.get(name), tensor.shape) else dropped).add(KINDS.get(kind, kind))
    return sorted(carried - dropped), sorted(dropped)


def _fits(after: StateTensor | None, shape: tuple[int, ...]) -> bool:
    return after is not None and after.values.shape == shape
