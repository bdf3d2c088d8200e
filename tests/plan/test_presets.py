"""The named plans: each is canonical, cited, and does not take a term's name."""

import pytest

from shoal.core.ids import check_id
from shoal.plan import Plan
from shoal.plan.presets import PRESETS
from shoal.plan.terms import TERMS


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_is_its_text_in_canonical_form(name: str) -> None:
    preset = PRESETS[name]
    assert str(Plan.parse(preset.text)) == preset.text
    assert Plan.parse(name) == Plan.parse(preset.text)


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_has_a_free_name_a_source_and_a_note(name: str) -> None:
    assert check_id(name)
    if name in TERMS:  # a codec may have its system's name: then it alone is that system
        assert TERMS[name].axis == "wire"
        assert TERMS[name].name in PRESETS[name].text
    assert PRESETS[name].cites
    assert PRESETS[name].note
