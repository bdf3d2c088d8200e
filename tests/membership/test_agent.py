"""Agents of real processes under a real coordinator: members are killed, stopped, evicted, let in."""

import os
import random
import signal
import threading
import time
from pathlib import Path

import pytest
from toy import RUN, until, world

from shoal.core.clock import Deadline
from shoal.core.errors import DeadlineError, UsageError
from shoal.membership.agent import MembershipAgent
from shoal.membership.failure_detector import MembershipRules
from shoal.membership.log_entries import MemberLost

CALM = MembershipRules(members=4, silence=20.0)
"""Only what a launcher tells is a loss: a busy machine loses nobody by silence."""
ALERT = MembershipRules(members=4, silence=4.0)


def test_a_killed_member_is_dropped_when_its_launcher_says_so() -> None:
    with world(4, CALM) as here:
        here.kill("m2")
        here.handle.gone("m2", "SIGKILL")
        here.go_on("m0", "m1", "m3")
        assert here.trace("m0")[-1].generation > here.trace("m2")[-1].generation


def test_a_killed_member_is_dropped_when_it_is_silent() -> None:
    with world(4, ALERT) as here:
        here.kill("m0")
        here.go_on("m1", "m2", "m3")
        assert here.trace("m1")[-1].generation > here.trace("m0")[-1].generation


def test_two_at_once() -> None:
    with world(4, CALM) as here:
        for name in ("m0", "m3"):
            here.kill(name)
            here.handle.gone(name, "SIGKILL")
        here.go_on("m1", "m2")


@pytest.mark.parametrize("where", ["before", "after"])
def test_a_stopped_member_is_out_and_is_told_when_it_wakes_up(where: str) -> None:
    """P6 and P7: what it still does changes nothing; the agreement of all traces is checked at the end."""
    with world(4, ALERT) as here:
        here.stop("m1", where)
        here.go_on("m0", "m2", "m3")
        last = here.trace("m1")[-1]
        os.kill(here.pids["m1"], signal.SIGCONT)
        until(lambda: here.end("m1"), here.describe)
        assert here.end("m1").startswith("Evicted: m1 is no member of toy any more (silent for ")
        assert here.trace("m1")[-1] == last, "it completed something after it was out"


def test_a_training_thread_in_a_deadlock_is_out_though_its_agent_beats() -> None:
    """P6: a heartbeat that says only that a thread of the process runs would say that all is well."""
    with world(4, MembershipRules(members=4, silence=20.0, stuck=4.0)) as here:
        here.place("m2", "deadlock")
        lost = list[MemberLost]()
        until(lambda: lost.extend(said for said in here.handle.read() if isinstance(said, MemberLost)) or lost)  # type: ignore[func-returns-value]
        assert lost[0].member == "m2"
        assert lost[0].reason.startswith("its training thread has not run for ")
        here.go_on("m0", "m1", "m3")
        here.kill("m2")


@pytest.mark.soak
def test_nobody_needs_the_coordinator_while_nothing_changes() -> None:
    """P3, N3: killed for five seconds, back from its log; generations only grow."""
    with world(4, CALM) as here:
        here.kill_coordinator()
        time.sleep(5.0)
        here.go_on("m0", "m1", "m2", "m3")
        generation = here.trace("m0")[-1].generation
        here.handle.restart(Deadline.after(30.0))
        here.add("m4")
        here.go_on("m0", "m1", "m2", "m3", "m4")
        assert here.trace("m4")[-1].generation > generation


def test_coordinator_and_member_killed_together() -> None:
    """P4: the launcher says again what the coordinator before did not live to hear."""
    with world(4, CALM) as here:
        here.kill_coordinator()
        here.kill("m3")
        here.handle.gone("m3", "SIGKILL")
        here.handle.restart(Deadline.after(30.0))
        here.go_on("m0", "m1", "m2")


def test_a_joiner_gets_its_state_from_a_donor() -> None:
    with world(2, MembershipRules(members=2, silence=20.0)) as here:
        here.add("m5")
        here.go_on("m0", "m1", "m5")
        assert here.trace("m5")[0].number > 1, "it goes on where the others were"


@pytest.mark.soak
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_whatever_happens_all_agree(seed: int) -> None:
    """Kills and stops of members and of the coordinator, one after the other and at once; newcomers for the lost."""
    chance, number = random.Random(seed), 4
    with world(4, ALERT) as here:
        living = ["m0", "m1", "m2", "m3"]
        for _ in range(6):
            victim = living.pop(chance.randrange(len(living)))
            if chance.random() < 0.4:
                here.kill_coordinator()
            if chance.random() < 0.5:
                here.kill(victim)
                here.handle.gone(victim, "SIGKILL")
            else:
                os.kill(here.pids[victim], signal.SIGSTOP)
            if not here.handle.alive():
                here.handle.restart(Deadline.after(30.0))
            living.append(f"m{number}")
            here.add(living[-1])
            number += 1
            here.go_on(*living, operations=5)
            for stopped in here.pids.values():
                os.kill(stopped, signal.SIGCONT)


def test_without_a_lease_nothing_is_completed() -> None:
    with world(2, MembershipRules(members=2, silence=20.0, lease=1.0)) as here:
        here.kill_coordinator()
        counts = [-1]

        def still() -> bool:
            counts.append(len(here.trace("m0")))
            time.sleep(0.5)
            return counts[-1] == counts[-2]

        until(still, here.describe)
        here.handle.restart(Deadline.after(30.0))
        here.go_on("m0", "m1")


def test_who_waits_in_vain_names_the_coordinator(tmp_path: Path) -> None:
    agent = MembershipAgent("m0", f"ipc://{tmp_path}/nobody", RUN)
    agent.start()
    with pytest.raises(DeadlineError, match=r"m0 waited 0 s for the coordinator at ipc://.*, which was never heard"):
        agent.enter(Deadline.after(0.3))
    agent.close()
    assert "shoal-agent" not in {thread.name for thread in threading.enumerate()}


def test_a_coordinator_on_a_network_needs_a_key() -> None:
    agent = MembershipAgent("m0", "tcp://127.0.0.1:9", RUN)
    agent.start()
    with pytest.raises(UsageError, match="there is no key; give the key file"):
        agent.enter(Deadline.after(30.0))
    agent.close()
