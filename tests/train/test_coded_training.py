"""Training through codecs, on real workers: replicas stay one model, and the record says what travelled."""

import forked
import pytest
import torch
from loops import data, loader, loss_of
from torch import nn

from shoal.core.events import StepFinished
from shoal.testing import WorkerWorld, run_world
from shoal.watch.tail import JournalTail
from shoal.wire import kernels

kernels.warm()  # once here instead of once in every worker
PLANS = ["fp16", "int8", "onebit", "twobit(0.05)", "ternary", "qsgd", "topk(0.1), int8", "randomk(0.5)",
         "threshold(0.05)", "dgc(ratio=0.1, momentum=0.5)", "esgd(0.5)", "lowrank(1)", "onebit, meet(twostage)",
         "int8, meet(twostage)"]  # fmt: skip


class Net(nn.Module):
    """A matrix, a norm with statistics, a branch that only some passes take, and one that none takes."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Linear(6, 24), nn.BatchNorm1d(24)
        self.last, self.side, self.idle = nn.Linear(24, 3), nn.Linear(24, 3), nn.Linear(9, 9)
        self.passes = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.passes += 1
        hidden = self.norm(self.first(x)) if len(x) > 1 else self.first(x)
        out = self.last(hidden.tanh())
        return out + 0.1 * self.side(hidden) if self.passes % 3 else out


@pytest.mark.parametrize("plans", [PLANS[at : at + 4] for at in range(0, len(PLANS), 4)], ids=lambda plans: plans[0])
def test_replicas_stay_one_model_through_every_codec(plans):
    """33 samples in steps of 8: in each epoch's last step one worker has a single sample and the other none."""

    def body(world: WorkerWorld):
        found, runs = {}, []
        for number, plan in enumerate(plans):
            torch.manual_seed(3)
            model = Net()
            run = world.start(plan, name=f"run{number}")
            model, optimizer, batches = run.join(
                model, torch.optim.SGD(model.parameters(), lr=0.05), loader(2, data(33))
            )
            losses = []
            for _ in range(3):
                for x, y in batches:
                    loss = loss_of(model, x, y)
                    loss.backward()
                    optimizer.step()
                    optimizer.zero_grad()
                    losses.append(float(loss.detach()))
            assert model.idle.weight.grad is None
            runs.append(run)
            found[f"p{number}"] = torch.cat([t.reshape(-1) for t in model.state_dict().values()])
            found[f"loss{number}"] = torch.tensor([sum(losses[:4]), sum(losses[-5:-1])])
        for number, run in enumerate(runs):  # only now: a worker that has closed a run counts as ended
            run.close()
            steps = [e for e in JournalTail(run.dir / f"worker-{run.rank}.jsonl").read() if isinstance(e, StepFinished)]
            found[f"bytes{number}"] = torch.tensor([[s.raw, s.sent, s.wire] for s in steps[:3]])
            found[f"encode{number}"] = torch.tensor(sum(s.encode for s in steps))
        return found

    one, two = run_world(2, body, seconds=110)
    gradient = 4 * sum(p.numel() for p in Net().parameters())
    statistics = 4 * 48
    for number, plan in enumerate(plans):
        assert torch.equal(one[f"p{number}"], two[f"p{number}"]), plan
        assert one[f"p{number}"].isfinite().all(), plan
        before, after = one[f"loss{number}"].tolist()
        assert after < before, plan
        for raw, sent, wire in one[f"bytes{number}"].tolist():
            assert raw == gradient + statistics, plan
            assert 0 < sent < 0.8 * raw, plan
            assert wire == 0  # one host: nothing crosses a socket
        assert float(one[f"encode{number}"]) > 0


def test_what_is_not_finite_is_left_out_by_all():
    def body(world: WorkerWorld):
        run = world.start("topk(0.5), by_size(0)")
        model, optimizer = run.join(model := nn.Linear(4, 3), torch.optim.SGD(model.parameters(), lr=0.1))
        found = []
        for factor in (1.0, float("inf") if run.rank == 1 else 1.0, 1.0):
            (model(torch.ones(2, 4)) * factor).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            found.append(model.weight.detach().clone())
        return {"weights": torch.stack(found)}

    one, two = (result["weights"] for result in run_world(2, body))
    assert torch.equal(one, two)
    assert torch.equal(one[0], one[1]), "the step is skipped"
    assert not torch.equal(one[1], one[2]), "and the next one made"


@pytest.mark.parametrize("engine", ["memory", "collective"])
def test_from_the_command_line(engine, tmp_path):
    plan = "topk(0.5), int8, by_size(0)"
    done = forked.train(tmp_path, forked.TRAIN, "-w", "2", "--plan", plan, "--json", SHOAL_ENGINE=engine)
    assert done.code == 0, done.err
    assert done.json["plan"] == "allreduce, every(1), topk(0.5), int8(1024), by_size(0)"


@pytest.mark.parametrize(
    "plan",
    [
        "halp(anchor=2, inner=3)",
        pytest.param("gupta", marks=pytest.mark.soak),
        pytest.param("weights(bits=12, frac=6), onebit", marks=pytest.mark.soak),
    ],
)
def test_a_model_in_few_bits_from_the_command_line(plan, tmp_path):
    words = ("--plan", plan, "--json")
    done = forked.train(tmp_path, forked.TRAIN, "-w", "2", "--restarts", "0", "--min-workers", "2", *words)
    assert done.code == 0, done.err
    alone = forked.train(tmp_path, forked.TRAIN, "-w", "1", *words)
    assert alone.code == 0, alone.err


@pytest.mark.parametrize(
    ("plan", "words"),
    [
        ("onebit, int8", "only a sparsifier's values are coded again"),
        ("feedback(off)", "goes around a codec and the plan has none"),
        ("topk(2)", "ratio must be a number from 1e-06 to 1"),
        ("alone, topk(0.1)", "'alone' sends nothing"),
        ("feedback(maybe), onebit", "errors must be one of on, off"),
        ("halp, weights", "'halp(bits=8, mu=1.0, anchor=100, inner=200)' rounds the weights itself"),
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_starts(plan, words, tmp_path):
    (tmp_path / "script.py").write_text(forked.TRAIN)
    done = forked.refused(tmp_path, "run", "-w", "2", "--plan", plan, "script.py")
    assert done.code == 2
    assert words in done.err
    assert not (tmp_path / "runs").exists()
