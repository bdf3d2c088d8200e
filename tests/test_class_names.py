"""Class names: one public name means one thing in the whole package."""

import re
from collections import Counter
from pathlib import Path

import shoal

SOURCE = Path(shoal.__file__).parent
CLASS = re.compile(r"^class (\w+)", re.MULTILINE)


def test_no_public_class_name_is_defined_twice() -> None:
    """A name in a traceback or a search leads to one place."""
    names = Counter(name for path in SOURCE.rglob("*.py") for name in CLASS.findall(path.read_text()))
    assert len(names) > 500
    assert not {name for name, count in names.items() if count > 1 and not name.startswith("_")}
