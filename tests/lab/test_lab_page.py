"""What docs/lab.md shows can be run as it stands."""

import re
from pathlib import Path

from shoal.lab.load import parse_lab, write_lab

PAGE = (Path(__file__).parents[2] / "docs" / "lab.md").read_text()


def test_every_lab_of_the_page_can_be_read() -> None:
    files = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    texts = re.findall(r"^\| `(\d+ hosts[^`]*)`", PAGE, re.MULTILINE)
    assert len(files) == 2
    assert len(texts) == 9
    for text in files + texts:
        assert parse_lab(write_lab(parse_lab(text))) == parse_lab(text)
