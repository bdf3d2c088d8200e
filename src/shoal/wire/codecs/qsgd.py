"""Stochastic levels against the norm of a bucket of elements, written in Elias' code: common small levels are short.

Alistarh et al., "QSGD: Communication-Efficient SGD via Gradient Quantization and Encoding", NIPS 2017; P. Elias,
"Universal codeword sets and representations of the integers", 1975. With `bits` = b there are 2^b - 1 levels on either
side. Unbiased, so it needs no feedback. Do not use it where encoding is the bottleneck: every element's code depends on
where the one before ended.

    head | norm per bucket, float32 | gamma codes of all elements        the length is what they really take
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from shoal.core.errors import PayloadError
from shoal.wire import kernels
from shoal.wire.builtin import QsgdSettings
from shoal.wire.codecs.checked import CheckedCodec
from shoal.wire.encode_context import EncodeContext, uniforms
from shoal.wire.head import HEAD, check_scales, padded, read_head
from shoal.wire.layout import FlatLayout


@dataclass(frozen=True)
class QsgdCodec(QsgdSettings, CheckedCodec):
    """Levels of norm / (2^bits - 1)."""

    code = 9
    dense = True
    kernel_names = ("pack_gamma", "unpack_gamma")
    fixed_size = False

    @property
    def levels(self) -> int:
        return (1 << self.bits) - 1

    def max_bytes(self, layout: FlatLayout) -> int:
        longest = 2 * (self.levels + 1).bit_length()  # a gamma code of the largest level, and its sign
        return self._body(layout) + -(-layout.numel * longest // 8)

    def _body(self, layout: FlatLayout) -> int:
        return HEAD.size + padded(4 * (len(layout.blocks(self.bucket, 8)) - 1))

    def _norms(self, payload: Tensor, layout: FlatLayout) -> Tensor:
        return payload[HEAD.size :][: 4 * (len(layout.blocks(self.bucket, 8)) - 1)].view(torch.float32)

    def _spread(self, norms: Tensor, layout: FlatLayout) -> Tensor:
        """The size of one level, for each element."""
        table = torch.from_numpy(layout.blocks(self.bucket, 8)[:-1])
        return (norms / self.levels).repeat_interleave(table[:, 1] - table[:, 0])

    def encode_whole(self, whole: Tensor, layout: FlatLayout, context: EncodeContext, out: Tensor, keep: bool) -> int:
        body, norms = self._body(layout), self._norms(out, layout)
        # The kernel only sets bits.
        out[HEAD.size :].zero_()
        for number, (start, end, _) in enumerate(layout.blocks(self.bucket, 8)[:-1].tolist()):
            norms[number] = torch.linalg.vector_norm(whole[start:end])
        step = self._spread(norms, layout)
        ratio = torch.where(step > 0, whole.abs() / step, 0.0)
        level = torch.floor(ratio + uniforms(0, layout.numel, context.random_words())).clamp_(max=self.levels)
        signed = torch.copysign(level, whole)
        length = kernels.get("pack_gamma")(signed.to(torch.int32).numpy(), out[body:].numpy())
        if keep:
            whole -= signed * step
        return body + int(length)

    def decode_add(self, payload: Tensor, layout: FlatLayout, out: Tensor) -> None:
        read_head(payload, self.code, layout.numel)
        body = self._body(layout)
        if not body <= payload.numel() <= self.max_bytes(layout):
            raise PayloadError(
                f"a payload of {payload.numel()} bytes cannot hold {layout.numel} elements of this codec"
            )
        norms = self._norms(payload, layout)
        check_scales(norms, "norm")
        level = np.zeros(layout.numel, np.int32)
        data = payload[body:].numpy()
        # Every byte must be used: a stream that ends early may hide another after it.
        if kernels.get("unpack_gamma")(data, self.levels, level) != len(data):
            raise PayloadError(
                "a payload's codes end too early, too late or out of range; it was changed or is foreign"
            )
        out += torch.from_numpy(level) * self._spread(norms, layout)
