"""What workers say about the joins they exchange is checked before it is believed."""

import pytest

from shoal.core.errors import PayloadError
from shoal.train.short_steps import _read_joins


@pytest.mark.parametrize(("said", "joins"), [(b"0", [0]), (b"1,0", [1, 0]), (b"2!", [2])])
def test_joins_are_read_in_the_order_they_were_announced(said: bytes, joins: list[int]) -> None:
    assert _read_joins(said, 3) == joins


@pytest.mark.parametrize("said", [b"", b"!", b"3", b"-1", b"0,0", b"0,", b"x", b"0;1", b"9" * 5000])
def test_what_names_no_joins_is_refused(said: bytes) -> None:
    with pytest.raises(PayloadError, match="names no joins of 3"):
        _read_joins(said, 3)
