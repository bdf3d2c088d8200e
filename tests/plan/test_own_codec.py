"""The codec of docs/extend.md, word for word: installed as a package, listed, explained, refused and trained with."""

import importlib
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from forked import TRAIN, Outcome, shoal, train
from own_codec import CODEC, FILTER, PAGE, PROJECT, TEST, install

from shoal.core.errors import UsageError
from shoal.core.record import read_info
from shoal.plan import Plan, registry
from shoal.plan.compose import compose
from shoal.plan.rules import check
from shoal.testing import CodecCase
from shoal.wire.codec import GradientCodec
from shoal.wire.encode_context import EncodeContext
from shoal.wire.layout import FlatLayout
from shoal.wire.wrappers.feedback import ErrorFeedback
from shoal.wire.wrappers.parts import PartialCodec


@pytest.fixture(scope="module", autouse=True)
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("site")
    install(folder, "shoal_sign", CODEC, PROJECT)
    install(
        folder,
        "shoal_broken",
        "import nothing_of_this_name\n",
        {
            "name": "shoal-broken",
            "version": "0.1",
            "entry-points": {"shoal.codecs": {"broken": "shoal_broken:Broken"}},
        },
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        patch.setattr(registry, "_registered", {})
        yield folder
        sys.modules.pop("shoal_sign", None)


class TestSignCodec(CodecCase):
    """What the page's own test runs."""

    test_the_mean_is_right_where_that_is_claimed = None  # type: ignore[assignment]  # claims nothing

    def make(self) -> GradientCodec:
        made: GradientCodec = importlib.import_module("shoal_sign").SignCodec()
        return made


def test_the_page_keeps_what_it_promises() -> None:
    assert len(CODEC.splitlines()) < 40
    assert "class TestSign(CodecCase)" in TEST


def test_a_plan_holds_it_as_any_other_term() -> None:
    plan = Plan.parse("sign(0.5), by_size(0), allreduce")
    assert str(plan) == "allreduce, every(1), sign(0.5), by_size(0)"
    assert Plan.parse(str(plan)) == plan
    assert hash(Plan.parse(str(plan))) == hash(plan)
    assert check(plan, 2) == []
    sign = importlib.import_module("shoal_sign").SignCodec
    assert compose(plan.wire) == PartialCodec(ErrorFeedback(sign(0.5)), 0)
    assert compose(Plan.parse("topk(0.1), sign, meet(gather)").wire) is not None
    assert compose(Plan.parse("sign, meet(twostage)").wire) is not None
    assert sign.code >= 128


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("sign(x)", "sign(scale=x): scale must be a number; write sign(1.0)"),
        ("sign(0.0)", "sign(scale=0.0): scale must be a number from 0.001 to 1000"),
        ("sgin", "unknown term 'sgin'; did you mean 'sign'?"),
        (
            "broken",
            "codec 'broken' of package shoal-broken 0.1 cannot be used: ModuleNotFoundError: No module named "
            "'nothing_of_this_name'; repair or uninstall the package",
        ),
    ],
)
def test_refusals(text: str, message: str) -> None:
    with pytest.raises(UsageError) as refused:
        Plan.parse(text)
    assert str(refused.value) == message


def test_it_is_listed_and_explained(tmp_path: Path) -> None:
    listed = {term["name"]: term for term in shoal(tmp_path, "plan", "list", "--json").json["terms"]}
    assert listed["sign"]["text"] == "sign(1.0)"
    assert listed["sign"]["summary"].startswith("Each element travels as its sign")
    assert "cannot be used" in listed["broken"]["summary"]
    explained = shoal(tmp_path, "plan", "explain", "sign", "--workers", "4").out
    assert "Karimireddy et al. 2019" in explained
    assert "payloads meet in two stages" in explained


def trained(folder: Path, plan: str) -> Outcome:
    return train(folder, TRAIN, "--workers", "2", "--plan", plan, "--name", "one")


def test_shoal_run_trains_with_it(tmp_path: Path) -> None:
    outcome = trained(tmp_path, "sign(0.5), by_size(0)")
    assert outcome.code == 0, outcome.err
    assert read_info(tmp_path / "runs" / "one").plan == "allreduce, every(1), sign(0.5), by_size(0)"
    events = [json.loads(line) for line in (tmp_path / "runs/one/worker-0.jsonl").read_text().splitlines()]
    assert any(event.get("codec") == "sign(0.5), by_size(0)" for event in events)


def test_a_machine_without_the_package_is_told_its_name_and_version(site: Path) -> None:
    wanted = registry.packages_of(Plan.parse("sign, by_size(0)").wire)
    assert wanted == {"sign": "shoal-sign 1.0"}
    registry.check_packages(wanted)
    said = "the plan's term 'sign' is in package 'shoal-sign 1.1' and this machine has shoal-sign 1.0; install the same"
    with pytest.raises(UsageError, match=said):
        registry.check_packages({"sign": "shoal-sign 1.1"})
    line = next(line for line in PAGE.splitlines() if line.startswith("shoal: the plan's term"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", [path for path in sys.path if path != str(site)])
        with pytest.raises(UsageError) as refused:
            registry.check_packages(wanted)
    assert f"shoal: {refused.value}" == line


def test_nothing_is_imported_before_a_plan_names_it(site: Path) -> None:
    program = (
        "import sys; from shoal.plan import Plan; Plan.parse('topk(0.1)'); print('shoal_sign' in sys.modules);"
        "Plan.parse('sign'); print('shoal_sign' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], env={"PYTHONPATH": str(site)}, capture_output=True, text=True
    )
    assert done.stdout.split() == ["False", "True"], done.stderr


def _stub(**facts: object) -> type:
    methods = {name: lambda self: None for name in ("max_bytes", "encode_into", "decode_add")}
    return type("Stub", (GradientCodec,), {"__doc__": "Does it.", "name": "stub", **methods, **facts})


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (int, "int is no codec; inherit from shoal.wire.codec.GradientCodec"),
        (_stub(), "Stub must be a frozen dataclass"),
        (dataclass(frozen=True)(_stub(name="topk")), "which is a term or a named plan of Shoal"),
        (dataclass(frozen=True)(_stub(name="bsp")), "which is a term or a named plan of Shoal"),
        (dataclass(frozen=True)(_stub(name="a b")), "Stub.name is 'a b'; give a word of letters"),
        (dataclass(frozen=True)(_stub(__doc__=None)), "Stub has no docstring"),
        (
            dataclass(frozen=True)(_stub(__annotations__={"sizes": list}, sizes=None)),
            "Stub.sizes is of type <class 'list'>; arguments of a term are int, float, str or Literal",
        ),
        (dataclass(frozen=True)(type("Stub", (GradientCodec,), {"name": "stub"})), "does not define decode_add"),
    ],
)
def test_what_cannot_stand_in_a_plan_is_not_registered(kind: type, message: str) -> None:
    with pytest.raises(UsageError, match=re.escape(message)):
        registry.register_codec(kind)


def test_registering_is_enough_in_one_process() -> None:
    kind = dataclass(frozen=True)(_stub(name="own", __annotations__={"bits": int}, bits=8))
    assert registry.register_codec(kind) is kind is registry.register_codec(kind)
    assert Plan.parse("own(4)").wire == (kind(4),)
    assert "own" in registry.foreign_names()
    with pytest.raises(UsageError, match="codec 'own' is registered by"):
        registry.register_codec(dataclass(frozen=True)(type("Other", (kind,), {"__doc__": "Another."})))


def test_a_filter_of_the_page_is_a_term_where_changes_travel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_registered", {})
    found: dict[str, Any] = {"__name__": "shoal_outgrown"}
    exec(FILTER, found)
    registry.register_codec(found["OutgrownFilter"])
    assert check(Plan.parse("server, async, outgrown(0.5)"), 2) == []
    with pytest.raises(UsageError, match="which only pushes to servers know"):
        check(Plan.parse("outgrown(0.5)"), 2)
    codec = compose(Plan.parse("server, stale(1), outgrown(0.5)").wire)
    assert codec is not None
    layout = FlatLayout.of([("w", (1, 4))])
    values, changes = torch.tensor([1.0, 1, -1, -4]), torch.tensor([0.4, -1.5, 0.6, 1.0])
    out, state = torch.zeros(codec.max_bytes(layout), dtype=torch.uint8), codec.init_state(layout)
    length = codec.encode_into(changes, layout, state, EncodeContext(reference=values), out)
    assert codec.decode(out[:length], layout).tolist() == torch.tensor([0, -1.5, 0.6, 0]).tolist()
    assert state["residual"].tolist() == torch.tensor([0.4, 0, 0, 1.0]).tolist()
