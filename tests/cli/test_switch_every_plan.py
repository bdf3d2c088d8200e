"""`run.switch` between every two kinds of plans on one host, on real workers: each is followed by one of another kind.

Every sample counts once, all replicas are one model, and all workers follow the same plans at the same steps; also when
a worker is killed right after a switch.
"""

from pathlib import Path

import pytest
from test_switch_command import assert_exactly_once, finish, start, switches, write

from shoal.plan.plan import Plan

pytestmark = [pytest.mark.usefixtures("tidy"), pytest.mark.timeout(300)]

KINDS = {
    "lock-step": ["allreduce", "int8"],
    "rounds": ["local(4)", "local(2, easgd)"],
    "leased rounds": ["local(3, samples=leased)", "local(4, samples=leased, end=fastest)"],
    "rounds that travel": ["local(4, overlap=true)", "local(4, diloco, fragments=2, overlap=true)"],
    "late gradients": ["allreduce, stale(2)", "allreduce, stale(1), topk(0.1)"],
    "servers": ["server, stale(1, round=5)", "server, async(round=4, speculate=1.0)"],
    "servers and leases": ["server, stale(2, samples=leased, round=3)", "server, deadline(0.2, round=4)"],
    "pairs": ["mix(steps=4)", "mix(steps=3)"],
    "datagrams": ["datagrams(steps=4)", "datagrams(steps=6)"],
}


FORWARD = [kind[0] for kind in KINDS.values()]
ACROSS = [kind[1] for start in range(3) for kind in list(KINDS.values())[start::3]]
"""In another order, so that every kind follows two others."""


@pytest.mark.parametrize("plans", [FORWARD[1:], ACROSS], ids=["forward", "across"])
def test_a_run_goes_through_every_kind_of_plan(tmp_path: Path, plans: list[str]) -> None:
    wanted = [str(Plan.parse(text)) for text in [*plans, "fp16"]]
    write(tmp_path, wanted, last=wanted[-1])
    script = tmp_path / "script.py"
    # at 0.02 the outer momentum diverges after 150 steps, if the servers of the next plan take as long to start
    script.write_text(script.read_text().replace("lr=0.02", "lr=0.002"))
    finish(start(tmp_path, "--workers", "2"))
    found = [[event.plan for event in switches(tmp_path, worker)] for worker in range(2)]
    assert found == [wanted, wanted]
    steps = [[event.step for event in switches(tmp_path, worker)] for worker in range(2)]
    assert steps[0] == steps[1]
    assert_exactly_once(tmp_path)


KILLED = """
        if run.worker_id == 1 and str(run.plan) in KILLS and not os.path.exists(str(run.plan)[:40]):
            open(str(run.plan)[:40], "w").close()
            os.kill(os.getpid(), 9)
        if run.size < 3 or any(plan == str(run.plan) and not os.path.exists(plan[:40]) for plan in KILLS):
            continue
"""


@pytest.mark.parametrize(
    "plans",
    [
        ["local(3, samples=leased)", "allreduce, stale(2)", "local(4, overlap=true)"],
        ["server, stale(2, samples=leased, round=3)", "datagrams(steps=4)"],
    ],
    ids=["leases, late means, overlap", "at servers and by datagrams"],
)
def test_a_worker_is_killed_right_after_each_switch(tmp_path: Path, plans: list[str]) -> None:
    """The others go on by the new plan, which the worker that is started in its place trains by too."""
    kills = [str(Plan.parse(text)) for text in plans]
    write(tmp_path, [*kills, "allreduce, every(1), fp16"], "allreduce, every(1), fp16", KILLED.strip())
    script = (tmp_path / "script.py").read_text().replace("next_plan,", f"KILLS = {kills!r}\nnext_plan,", 1)
    (tmp_path / "script.py").write_text(script)
    finish(start(tmp_path, "--workers", "3"))
    assert [event.plan for event in switches(tmp_path, 0)] == [*kills, "allreduce, every(1), fp16"]
    assert all((tmp_path / plan[:40]).exists() for plan in kills)
    assert_exactly_once(tmp_path)
