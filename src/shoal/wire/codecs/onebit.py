"""One bit an element: its sign; each side of a block is replaced by that side's mean.

Seide et al., "1-Bit Stochastic Gradient Descent and its Application to Data-Parallel Distributed Training of Speech
DNNs", Interspeech 2014. Blocks stand for the paper's columns: at most `block` elements, never of two layers. Do not use
it without error feedback: what rounding loses is most of the gradient.

    head | (mean of the negative, mean of the others) per block, float32 | bits
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from shoal.wire import kernels
from shoal.wire.builtin import OneBitSettings
from shoal.wire.codec import GradientCodec, State, refuse, refuse_non_finite
from shoal.wire.encode_context import EncodeContext
from shoal.wire.head import HEAD, check_finite, check_length, padded, read_head, write_head
from shoal.wire.layout import FlatLayout


@dataclass(frozen=True)
class OneBitCodec(OneBitSettings, GradientCodec):
    """Signs and two means per block."""

    code = 5
    dense = True
    kernel_names = ("pack_signs", "add_signs")

    def max_bytes(self, layout: FlatLayout) -> int:
        return self._body(layout) + int(layout.blocks(self.block, 1)[-1, 0])

    def _body(self, layout: FlatLayout) -> int:
        return HEAD.size + padded(8 * (len(layout.blocks(self.block, 1)) - 1))

    def _means(self, payload: Tensor, layout: FlatLayout) -> Tensor:
        return payload[HEAD.size :][: 8 * (len(layout.blocks(self.block, 1)) - 1)].view(torch.float32).view(-1, 2)

    def encode_into(
        self,
        values: Tensor,
        layout: FlatLayout,
        state: State,
        context: EncodeContext,
        out: Tensor,
        residual: Tensor | None = None,
    ) -> int:
        size, body = self.max_bytes(layout), self._body(layout)
        write_head(out, self.code, layout.numel)
        out[HEAD.size : body].zero_()
        means, data = self._means(out, layout), out[body:size]
        if kernels.fast():
            table, left = layout.blocks(self.block, 1), values if residual is None else residual
            bad = kernels.get("pack_signs")(
                values.numpy(), left.numpy(), residual is not None, table, means.numpy(), data.numpy()
            )
            if bad >= 0:
                refuse(values, layout, residual)
        else:
            self._reference(values, layout, residual, means, data)
        return size

    def _reference(
        self, values: Tensor, layout: FlatLayout, residual: Tensor | None, means: Tensor, data: Tensor
    ) -> None:
        refuse_non_finite(values, layout)
        whole = values if residual is None else residual.add_(values)
        weights = 2 ** torch.arange(8)
        for number, (start, end, at) in enumerate(layout.blocks(self.block, 1)[:-1].tolist()):
            x = whole[start:end]
            # Zero counts as positive, in the kernel too: one bit has no third side.
            up = x >= 0
            # The mean of each side keeps the sum of a block exact, which is what feedback carries on.
            means[number, 0] = x[~up].mean() if bool((~up).any()) else 0.0
            means[number, 1] = x[up].mean() if bool(up.any()) else 0.0
            padding = torch.zeros(-len(x) % 8, dtype=torch.bool)
            codes = (torch.cat([up, padding]).view(-1, 8) * weights).sum(1)
            data[at : at + len(codes)] = codes.to(torch.uint8)
            if residual is not None:
                x -= torch.where(up, means[number, 1], means[number, 0])

    def decode_add(self, payload: Tensor, layout: FlatLayout, out: Tensor) -> None:
        self._decode(payload, layout, out, fresh=False)

    def decode_into(self, payload: Tensor, layout: FlatLayout, out: Tensor) -> None:
        self._decode(payload, layout, out, fresh=True)

    def _decode(self, payload: Tensor, layout: FlatLayout, out: Tensor, fresh: bool) -> None:
        read_head(payload, self.code, layout.numel)
        check_length(payload, self.max_bytes(layout))
        means, data = self._means(payload, layout), payload[self._body(layout) :]
        check_finite(means, "mean")
        table = layout.blocks(self.block, 1)
        if kernels.fast():
            kernels.get("add_signs")(data.numpy(), means.numpy(), table, fresh, out.numpy())
            return
        if fresh:
            out.zero_()
        for number, (start, end, at) in enumerate(table[:-1].tolist()):
            codes = data[at : at + -(-(end - start) // 8)]
            up = ((codes[:, None] >> torch.arange(8, dtype=torch.uint8)) & 1).bool().view(-1)[: end - start]
            out[start:end] += torch.where(up, means[number, 1], means[number, 0])
