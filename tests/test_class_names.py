"""Class names: one public name means one thing in the whole package."""

import ast
from collections import Counter
from pathlib import Path

import shoal

SOURCE = Path(shoal.__file__).parent


def test_no_public_class_name_is_defined_twice() -> None:
    """A name in a traceback or a search leads to one place."""
    trees = [ast.parse(path.read_text()) for path in SOURCE.rglob("*.py")]
    names = Counter(node.name for tree in trees for node in tree.body if isinstance(node, ast.ClassDef))
    assert not {name for name, count in names.items() if count > 1 and not name.startswith("_")}
