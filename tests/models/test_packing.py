"""Packed versions come back bit by bit, take less room, and survive crashes, removals and repairs."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from test_registry import same
from torch import nn

from shoal.core.durable import PART
from shoal.models import Registry, RegistryError, deltas
from shoal.models.blobs import LONGEST_CHAIN
from shoal.models.packing import PackingResult, pack
from shoal.models.upkeep import collect, set_aside, verify
from shoal.testing.crashsim import CrashState, RecordedDisk

BASE = "ab" * 32


class TestDeltas:
    @given(st.binary(max_size=200), st.randoms(use_true_random=False), st.sampled_from([1, 2, 4, 8]))
    def test_any_bytes_come_back(self, content: bytes, random: object, width: int) -> None:
        base = random.randbytes(len(content))  # type: ignore[attr-defined]
        delta = deltas.encode(content, base, BASE, width)
        assert deltas.header(delta) == (BASE, len(content))
        assert deltas.decode(delta, base) == content

    def test_special_floats_and_a_change_of_sign_come_back(self) -> None:
        old = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1e-45, 3.4e38, 1.0], np.float32).tobytes()
        base = np.array([-0.0, 1.0, -np.inf, np.nan, 0.0, -1e-45, -3.4e38, 1.0], np.float32).tobytes()
        assert deltas.decode(deltas.encode(old, base, BASE, 4), base) == old

    def test_damage_and_another_base_are_refused(self) -> None:
        delta = deltas.encode(b"12345678", b"12345679", BASE, 4)
        for place in range(8, len(delta)):
            broken = delta[:place] + bytes([delta[place] ^ 1]) + delta[place + 1 :]
            with pytest.raises(RegistryError, match=r"damaged|the most"):
                deltas.decode(broken, b"12345679")
        with pytest.raises(RegistryError, match="has a base of 4"):
            deltas.decode(delta, b"1234")
        with pytest.raises(RegistryError, match="it is no delta"):
            deltas.header(b"something else" * 9)


def snapshots(
    registry: Registry, count: int, dtype: torch.dtype = torch.float32, rate: float = 0.05
) -> list[dict[str, torch.Tensor]]:
    """Of one training, registered as digits:1, digits:2, …"""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10)).to(dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    states = []
    for _ in range(count):
        for _ in range(4):
            x = torch.randn(32, 64, dtype=dtype)
            nn.functional.cross_entropy(model(x), (x[:, :10]).argmax(-1)).backward()
            optimizer.step()
            optimizer.zero_grad()
        states.append({name: tensor.clone() for name, tensor in model.state_dict().items()})
        registry.add("digits", states[-1])
    return states


def size(registry: Registry) -> int:
    return sum(registry.blobs.stored(digest) for digest in registry.blobs.digests())


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    return Registry(tmp_path / "models")


def all_same(registry: Registry, states: list[dict[str, torch.Tensor]]) -> bool:
    return all(same(registry.tensors(registry.get(f"digits:{n}")), state) for n, state in enumerate(states, 1))


class TestPack:
    @pytest.mark.parametrize(
        ("dtype", "rate", "most"),
        [(torch.bfloat16, 0.05, 0.5), (torch.float32, 0.0005, 0.5), (torch.float32, 0.05, 0.8)],
        ids=["bfloat16", "fine-tuning", "all bits move"],
    )
    def test_snapshots_of_one_training_take_less(
        self, registry: Registry, dtype: torch.dtype, rate: float, most: float
    ) -> None:
        states = snapshots(registry, 10, dtype, rate)
        full = size(registry)
        done = pack(registry)
        assert done.chunks == 9
        assert full - size(registry) == done.before - done.after
        assert size(registry) <= most * full, size(registry) / full
        assert all_same(registry, states)
        assert verify(registry, registry.list()) == []
        assert pack(registry) == PackingResult(0, 0, 0), "again changes nothing"

    def test_a_chain_is_never_longer_than_its_limit(self, registry: Registry) -> None:
        states: list[dict[str, torch.Tensor]] = []
        for round_ in range(LONGEST_CHAIN + 6):  # packed after every version: the worst order
            states.append({"a": torch.linspace(0, 1, 500) * (1 + round_ / 1000)})
            registry.add("digits", states[-1])
            pack(registry)
        chains = [len(registry.blobs.chain(digest)) for digest in registry.blobs.digests()]
        assert max(chains) == LONGEST_CHAIN
        assert all_same(registry, states)

    def test_what_is_loaded_stays_whole(self, registry: Registry) -> None:
        snapshots(registry, 4)
        registry.tag("digits:1", "prod")
        with registry.hold(registry.get("digits:2")):
            assert pack(registry).chunks == 1
        bases = {n: [registry.blobs.base(chunk) for chunk in chunks(registry, n)] for n in range(1, 5)}
        assert [any(found) for found in bases.values()] == [False, False, True, False]

    def test_two_names_that_go_in_opposite_orders_make_no_circle(self, registry: Registry) -> None:
        one, two = {"a": torch.linspace(0, 1, 500)}, {"a": torch.linspace(0, 1.001, 500)}
        for name, order in (("up", (one, two)), ("down", (two, one))):
            for state in order:
                registry.add(name, state)
            registry.add(name, {"a": torch.linspace(0, 1.002, 500)})
        pack(registry)
        for name, order in (("up", (one, two)), ("down", (two, one))):
            for number, state in enumerate(order, 1):
                assert same(registry.tensors(registry.get(f"{name}:{number}")), state)

    def test_the_same_weights_again_and_a_pull_find_what_is_packed(self, registry: Registry, tmp_path: Path) -> None:
        states = snapshots(registry, 3)
        pack(registry)
        before = size(registry)
        again = registry.add("digits", states[0])
        assert size(registry) - before < 2000, "a manifest alone"
        assert same(registry.tensors(again), states[0])
        other = Registry(tmp_path / "other")
        first = registry.get("digits:1")
        assert same(other.tensors(other.adopt("digits", first.digest, registry.blobs.read)), states[0])


def chunks(registry: Registry, number: int) -> list[str]:
    return list(registry.manifest(registry.get(f"digits:{number}")).sizes)


class TestUpkeep:
    def test_what_a_child_needs_outlives_its_version(self, registry: Registry) -> None:
        states = snapshots(registry, 3)
        pack(registry)
        registry.tag("digits:1", "first")
        assert collect(registry, keep=1).versions == ["digits:2"]
        registry.add("digits", {"other": torch.zeros(3)})
        registry.remove("digits:3")
        collect(registry)
        assert same(registry.tensors(registry.get("digits:1")), states[0])
        registry.untag("digits@first")
        registry.remove("digits:1")
        collect(registry)
        assert len(list(registry.blobs.digests())) == 2, "a chunk and a manifest of digits:4"

    def test_verify_names_all_that_stand_on_damage_and_repair_takes_only_that(self, registry: Registry) -> None:
        states = snapshots(registry, 3)
        pack(registry)
        (base,) = chunks(registry, 3)
        content = registry.blobs.path(base).read_bytes()
        registry.blobs.path(base).write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        assert {damage.ref for damage in verify(registry, registry.list())} == {"digits:1", "digits:2", "digits:3"}
        assert set_aside(registry) == 1
        assert registry.blobs.size(chunks(registry, 1)[0]) is None, "not here as long as its base is not"
        registry.add("digits", states[2])
        assert verify(registry, registry.list()) == []
        (child,) = chunks(registry, 1)
        path = registry.blobs.delta_path(child)
        path.write_bytes(path.read_bytes()[:-1] + b"!")
        assert {damage.ref for damage in verify(registry, registry.list())} == {"digits:1"}
        assert set_aside(registry) == 1


def fixed_names(crash: CrashState) -> str:
    tree = crash.tree
    return repr(sorted((name, tree.content.get(node)) for (_, name), node in tree.names.items() if PART not in name))


def test_every_crash_leaves_every_version_whole(tmp_path: Path) -> None:
    home, index = tmp_path / "models", tmp_path / "index"
    states = snapshots(Registry(home), 3)
    shutil.copytree(home, index, ignore=shutil.ignore_patterns("blobs"))
    disk = RecordedDisk(home / "blobs")
    disk._nodes[home] = 0  # its parent is there already, and durable
    assert pack(Registry(home, disk)).chunks == 2
    found = {fixed_names(crash): crash for crash in disk.crashes()}
    assert len(found) >= 4, "before, one packed, both copies of the second, both packed"
    for number, crash in enumerate(found.values()):
        place = tmp_path / str(number)
        shutil.copytree(index, place)
        crash.build(place / "blobs")
        after = Registry(place)
        assert all_same(after, states), crash.what
        pack(after)
        assert all_same(after, states), crash.what
        collect(after)
        assert not list(place.rglob(f"*{PART}")), crash.what
        shutil.rmtree(place)
