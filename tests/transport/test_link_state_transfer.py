"""The state of a run goes to newcomers over links as a message: whole, of the view that stands, from the donor."""

import os

from forked import soon
from meshes import WAIT, meshes

from shoal.groups.state_transfer import LinkStateTransfer
from shoal.membership.view import MembershipView


def view(generation: int) -> MembershipView:
    return MembershipView(generation, ("0", "1", "2"))


def test_newcomers_take_what_the_donor_gave_in_their_view() -> None:
    state = os.urandom(300_000)
    with meshes(3) as made:
        transfers = [LinkStateTransfer(mesh) for mesh in made]
        assert transfers[1].take(view(1), "0") is None
        transfers[0].give(view(1), ["1", "2"], state)
        for taker in transfers[1:]:
            assert soon(WAIT, lambda taker=taker: taker.take(view(1), "0") == state)
            assert taker.take(view(2), "0") is None, "of another view it is another state"


def test_a_view_that_ends_meanwhile_does_not_stop_the_next_state() -> None:
    first, second = os.urandom(3_000_000), os.urandom(100_000)
    with meshes(3) as made:
        donor, newcomer = LinkStateTransfer(made[0]), LinkStateTransfer(made[1])
        newcomer.take(view(1), "0")
        donor.give(view(1), ["1"], first)
        for generation in (1, 2):
            for mesh in made:
                mesh.reform(generation, [0, 1, 2])
            assert generation == 1 or newcomer.take(view(2), "0") is None
        donor.give(view(2), ["1"], second)
        assert soon(WAIT, lambda: newcomer.take(view(2), "0") == second)


def test_nobody_but_the_donor_is_heard_and_who_trains_keeps_nothing() -> None:
    with meshes(3) as made:
        donor, newcomer, other = (LinkStateTransfer(mesh) for mesh in made)
        newcomer.take(view(1), "0")
        other.give(view(1), ["1"], b"not asked for")
        donor.give(view(1), ["1"], b"state")
        assert soon(WAIT, lambda: newcomer.take(view(1), "0") == b"state")
        assert not other._tickets["1"].done.is_set()  # it may not send before it is asked
        newcomer.release()
        donor.release()
        donor.give(view(2), ["1"], b"again")
        assert soon(WAIT, lambda: donor._tickets["1"].done.is_set())
        assert newcomer.take(view(2), "0") is None
