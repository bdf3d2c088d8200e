"""Trials of codecs: times of something, bytes as declared, and nothing of the script's is touched."""

import torch

from shoal.wire.codecs.onebit import OneBitCodec
from shoal.wire.trial import try_adding, try_casting, try_codec
from shoal.wire.wrappers.feedback import ErrorFeedback


def test_trials_measure_and_leave_the_random_stream_alone() -> None:
    before = torch.get_rng_state()
    tried = try_codec(ErrorFeedback(OneBitCodec()))
    assert tried.encode > 0
    assert tried.decode > 0
    assert 1 / 8 <= tried.sent < 1 / 7
    assert try_casting().sent == 2.0
    assert try_adding() > 0
    assert try_adding(torch.float16) > 0
    assert torch.equal(torch.get_rng_state(), before)
