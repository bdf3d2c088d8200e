"""Names of test files: pytest imports them by name alone, so two of one name cannot be collected together."""

from collections import Counter
from pathlib import Path


def test_no_two_test_files_have_one_name() -> None:
    names = Counter(path.name for path in Path(__file__).parent.rglob("test_*.py"))
    assert not {name for name, count in names.items() if count > 1}
