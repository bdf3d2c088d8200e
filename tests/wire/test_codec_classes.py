"""Codecs declare what they are: nobody outside `wire` asks for their class and so knows the built-in ones only."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src" / "shoal"
BASES = {"GradientCodec", "CodecSettings"}
"""To ask whether something is a codec at all is fine: codecs of other packages are."""
TEXTS = {path.relative_to(SOURCE): path.read_text() for path in sorted(SOURCE.rglob("*.py"))}
CLASS = re.compile(r"^ *class (\w+)\(([^)]*)\)", re.MULTILINE)


def codec_classes() -> set[str]:
    """The names of all classes below the two bases."""
    parents = {
        name: {base.strip().rpartition(".")[2] for base in bases.split(",")}
        for text in TEXTS.values()
        for name, bases in CLASS.findall(text)
    }
    found = set(BASES)
    while more := {name for name, bases in parents.items() if bases & found} - found:
        found |= more
    return found - BASES


CLASSES = codec_classes()


def questions(tree: ast.AST) -> Iterator[str]:
    """`isinstance`, `issubclass`, `type(x) is` and `case` that name the class of a codec."""
    for node in ast.walk(tree):
        asked: list[ast.expr] = []
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id in ("isinstance", "issubclass")
        ):
            asked = node.args[1:]
        elif isinstance(node, ast.MatchClass):
            asked = [node.cls]
        elif isinstance(node, ast.Compare) and ast.unparse(node.left).startswith("type("):
            asked = node.comparators
        names = {getattr(part, "id", getattr(part, "attr", "")) for each in asked for part in ast.walk(each)}
        if names & CLASSES:
            yield f"line {node.lineno}: {ast.unparse(node)[:80]}"  # type: ignore[attr-defined]


def test_nobody_outside_wire_asks_for_the_class_of_a_codec() -> None:
    outside = {path: text for path, text in TEXTS.items() if path.parts[0] != "wire"}
    assert len(outside) > 300
    # only where a codec is named at all: to parse every module takes seconds
    named = {path: text for path, text in outside.items() if any(name in text for name in CLASSES)}
    assert named
    assert [f"{path}, {found}" for path, text in named.items() for found in questions(ast.parse(text))] == []


def test_every_codec_has_a_number_of_its_own() -> None:
    """It stands in each payload's head, and is how a worker notices that another runs another codec."""
    own = [text for path, text in TEXTS.items() if path.parts[0] == "wire"]
    found = [int(number) for text in own for number in re.findall(r"^    code = (\d+)$", text, re.MULTILINE)]
    assert len(found) > 15
    assert len(set(found)) == len(found)


def test_the_rule_sees_what_it_forbids() -> None:
    assert {"TopKCodec", "Int8Settings", "ErrorFeedback", "PartialCodec", "CastCodec"} <= CLASSES
    for line in (
        "isinstance(codec, CastCodec)",
        "isinstance(codec, wire.cast.CastCodec | int)",
        "type(codec) is TopKCodec",
        "type(term) in (TopKSettings,)",
        "issubclass(kind, SparseCodec)",
        "match codec:\n  case ErrorFeedback(): pass",
    ):
        assert list(questions(ast.parse(line))), line
    assert not list(questions(ast.parse("isinstance(codec, GradientCodec)")))
