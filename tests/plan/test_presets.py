"""The named plans: each is canonical, cited, and does not take a term's name."""

from pathlib import Path

import pytest

from shoal.core.ids import check_id
from shoal.plan import Plan
from shoal.plan.explain import explain
from shoal.plan.presets import PRESETS
from shoal.plan.terms import TERMS

TESTS = Path(__file__).parents[1]
DIRECTIONS = {
    "hogwild": ("train/test_shared_plan.py", "niu_sparse_updates_without_locks_come_to_the_loss_of_one_process"),
    "1bit-sgd": ("wire/test_learning.py", "without_feedback_it_is_worse"),
    "2bit-mxnet": ("wire/test_ratios.py", "two_bits_are_a_sixteenth_and_a_head"),
    "qsgd": ("wire/test_ratios.py", "alistarh_fewer_levels_take_fewer_bits"),
    "terngrad": ("wire/codecs/test_codec_cases.py", "terngrad_has_three_levels_a_layer_in_two_bits_an_element"),
    "dgc": ("wire/test_learning.py", "lin_momentum_correction_helps_where_steps_are_large"),
    "esgd": ("wire/test_learning.py", "tao_and_li_less_is_worse_but_not_much"),
    "strom": ("wire/codecs/test_codec_cases.py", "seide_mxnet_and_strom_send_all_in_the_end"),
    "powersgd": ("wire/test_learning.py", "without_feedback_it_is_worse"),
    "nexus": ("wire/codecs/test_nonzero.py", "nexus_each_tensor_is_dense_or_sparse_by_its_own_density"),
    "gupta": ("train/precision/test_precision_fixed.py", "gupta_random_rounding_trains_where_the_nearest_does_not"),
    "dorefa": ("train/precision/test_precision_dorefa.py", "zhou_one_two_six_bits_learn_almost_as_well_and_travel_so"),
    "halp": ("train/precision/test_precision_halp.py", "de_sa_eight_bits_go_below_the_floor_of_low_precision_sgd"),
    "project-adam": (
        "wire/codecs/test_factors.py",
        "chilimbi_the_product_is_the_gradient_and_shorter_whenever_it_can_be",
    ),
    "poseidon": ("wire/codecs/test_factors.py", "chilimbi_the_product_is_the_gradient_and_shorter_whenever_it_can_be"),
    "petuum": ("sync/server/test_payloads.py", "what_is_sent_and_what_waits_are_what_there_was"),
    "theano-mpi": ("wire/test_ratios.py", "at_most_this_much_is_sent"),
    "tictac": ("train/test_deferred.py", "each_layer_is_waited_for_just_before_it_is_used"),
    "bosen": ("wire/codecs/test_largest.py", "bosen_largest_first_learns_faster_than_any_order"),
}
"""What shows the direction of each paper, in `make test`."""


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


@pytest.mark.parametrize("name", [name for name in PRESETS if Plan.parse(name).wire])
def test_what_travels_under_a_preset_is_cited_and_has_a_test_of_its_papers_direction(name: str) -> None:
    assert any(part.cites for part in explain(Plan.parse(name)).parts if part.axis == "wire")
    assert name in explain(Plan.parse(name)).names
    file, test = DIRECTIONS[name]
    assert f"def test_{test}(" in (TESTS / file).read_text()
