"""Names are ids, never paths."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.core.errors import UsageError
from shoal.core.ids import check_id, new_id


@pytest.mark.parametrize("name", ["a", "0", "run-1", "a.b_c-d", "x" * 64])
def test_ids_pass(name: str) -> None:
    assert check_id(name) == name


@pytest.mark.parametrize("name", ["", ".", "..", "-a", "_a", "A", "a/b", "a b", "a\n", "é", "x" * 65, "a\0"])
def test_others_are_refused_with_the_value_and_the_rule(name: str) -> None:
    with pytest.raises(UsageError) as error:
        check_id(name, "run")
    message = str(error.value)
    assert message.startswith(f"run {name!r} is not an id; use 1 to 64 of")
    assert "\n" not in message


@given(st.text(max_size=70))
def test_no_id_leads_out_of_a_folder(name: str) -> None:
    try:
        check_id(name)
    except UsageError:
        return
    assert not set(name) & set("/\\\0\n ")
    assert name not in (".", "..")


def test_new_ids_sort_by_time_and_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "strftime", lambda form: time_text[0])
    time_text = ["20260131-142501"]
    early = {new_id() for _ in range(20)}
    time_text[0] = "20260131-142502"
    assert max(early) < new_id()
    assert len(early) > 1
    assert new_id("bench").startswith("bench-20260131-142502-")


def test_a_bad_prefix_is_refused() -> None:
    with pytest.raises(UsageError):
        new_id("../run")
