"""The list of systems is complete, and every "works" in it is shown by something that exists."""

import ast
from pathlib import Path

import msgspec
import pytest
import typer
from typer.testing import CliRunner

from shoal.cli.systems import SystemRow, count_line, find, nearest, read_systems, systems
from shoal.core.errors import UsageError
from shoal.plan.presets import PRESETS

ROOT = Path(__file__).resolve().parents[2]
TOTAL = 209


def complaints(system: SystemRow, root: Path = ROOT) -> list[str]:
    """What is wrong with an entry's claim: nothing for an honest one."""
    if system.status != "works":
        return [f"{system.name}: {system.status}, yet it has shows"] if system.shows else []
    if not system.shows:
        return [f"{system.name}: works, yet nothing shows it"]
    return [f"{system.name}: no {shown}" for shown in system.shows if not exists(shown, root)]


def exists(shown: str, root: Path) -> bool:
    """Is `shown` a named plan, or a test that its file really defines?"""
    if shown.startswith("plan:"):
        return shown.removeprefix("plan:") in PRESETS
    file, _, path = shown.partition("::")
    # Inside tests/ only: "tests/../" would let a claim rest on anything.
    if not file.startswith("tests/") or ".." in file or not (root / file).is_file():
        return False
    return defines(ast.parse((root / file).read_text()), path.split("::"))


def defines(tree: ast.AST, names: list[str]) -> bool:
    """Does the tree hold a test function, or a class with that test method?"""
    node: ast.AST = tree
    for name in names:
        kinds = (ast.FunctionDef, ast.ClassDef)
        inner = [child for child in ast.iter_child_nodes(node) if isinstance(child, kinds) and child.name == name]
        if not inner:
            return False
        node = inner[-1]
    return isinstance(node, ast.FunctionDef) and node.name.startswith("test")


def entry(status: str = "works", *shows: str) -> SystemRow:
    fields = {"number": 1, "name": "A", "family": "f", "idea": "i", "works_when": "w", "status": status}
    return msgspec.convert({**fields, "shows": shows}, SystemRow)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests/test_a.py").write_text(
        "def test_x(): ...\ndef help(): ...\nclass TestB:\n  def test_y(self): ...\n"
    )
    (tmp_path / "outside.py").write_text("def test_x(): ...\n")
    return tmp_path


def call(*arguments: str) -> tuple[int, str, str]:
    app = typer.Typer()
    app.command()(systems)
    result = CliRunner().invoke(app, list(arguments))
    return result.exit_code, result.stdout, result.stderr


def test_the_list_is_complete_and_in_order() -> None:
    everything = read_systems()
    assert [s.number for s in everything] == list(range(1, TOTAL + 1))
    assert len({s.name for s in everything}) == TOTAL
    assert max(len(s.idea) for s in everything) <= 140


def test_every_claim_is_honest() -> None:
    assert [line for system in read_systems() for line in complaints(system)] == []


@pytest.mark.parametrize("shown", ["tests/test_a.py::test_x", "tests/test_a.py::TestB::test_y", "plan:bsp"])
def test_an_honest_claim_passes(root: Path, shown: str) -> None:
    assert complaints(entry("works", shown), root) == []


@pytest.mark.parametrize(
    "shown",
    [
        "tests/test_b.py::test_x",  # no such file
        "tests/test_a.py::test_z",  # no such test
        "tests/test_a.py::test_y",  # a method, not a function
        "tests/test_a.py::TestB",  # a class shows nothing by itself
        "tests/test_a.py::help",  # pytest would not run it
        "tests/test_a.py",
        "tests/../outside.py::test_x",
        "outside.py::test_x",
        "plan:nobody",
        "",
    ],
)
def test_an_empty_claim_is_found(root: Path, shown: str) -> None:
    assert complaints(entry("works", "tests/test_a.py::test_x", shown), root) == [f"A: no {shown}"]


def test_works_needs_shows_and_only_works_may_have_them() -> None:
    assert complaints(entry("works")) == ["A: works, yet nothing shows it"]
    assert complaints(entry("planned", "plan:bsp")) == ["A: planned, yet it has shows"]
    assert complaints(entry("hardware")) == []


@pytest.mark.parametrize("line", ['status = "soon"', 'status = "planned"\ncolour = "red"', ""])
def test_the_schema_is_closed(tmp_path: Path, line: str) -> None:
    file = tmp_path / "systems.toml"
    file.write_text('[[system]]\nnumber = 1\nname = "A"\nfamily = "f"\nidea = "i"\nworks_when = "w"\n' + line)
    with pytest.raises(UsageError, match="is not a list of systems"):
        read_systems(file)


def test_a_missing_file_names_the_place(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no list of systems at .*gone\.toml"):
        read_systems(tmp_path / "gone.toml")


def test_find_by_number_and_by_part_of_a_name() -> None:
    everything = read_systems()
    assert [s.name for s in find(everything, "6")] == ["Horovod"]
    assert {s.number for s in find(everything, "HOGWILD")} >= {30, 37}


def test_nearest_sees_a_mistyped_word_and_a_number_too_high() -> None:
    everything = read_systems()
    assert "Downpour SGD" in [s.name for s in nearest(everything, "downpuor")]
    assert nearest(everything, "300")[0].number == TOTAL


def test_the_table_has_every_row_and_the_counts() -> None:
    code, out, _ = call()
    assert code == 0
    assert out.splitlines()[-1] == count_line(read_systems())
    assert [line.split()[0] for line in out.splitlines() if line[:3].strip().isdecimal()][-1] == str(TOTAL)


def test_one_entry_is_shown_in_full() -> None:
    code, out, _ = call("horovod")
    text = " ".join(out.split())
    assert code == 0
    assert all(part in text for part in ("6 Horovod", "works when", find(read_systems(), "6")[0].works_when))


def test_json_is_the_list_itself() -> None:
    assert msgspec.json.decode(call("--json")[1], type=tuple[SystemRow, ...]) == read_systems()
    assert [s["number"] for s in msgspec.json.decode(call("6", "--json")[1])] == [6]


@pytest.mark.parametrize("name", ["horovood", "300", " "])
def test_no_match_is_refused_with_the_nearest_names(name: str) -> None:
    code, out, err = call(name)
    assert (code, out) == (2, "")
    assert err.startswith(f"shoal: no system {name!r}")
    assert len(err.splitlines()) == 1
    assert "nearest: " in err
