"""The console a command draws on."""

import io
import sys

import pytest
from rich.text import Text

from shoal.watch.console import open_console


def test_a_letter_the_encoding_lacks_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="ascii"))
    open_console().print(Text("émile [bold]"))
    sys.stdout.flush()
    assert raw.getvalue() == b"?mile [bold]\n"
