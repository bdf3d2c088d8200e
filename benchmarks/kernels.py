"""How fast codecs encode and decode: input bytes a second against memcpy of the same bytes in the same run, one thread.

    python benchmarks/kernels.py [--elements 25000000] [--rounds 5] [--compile]

In each round memcpy, encode and decode take turns, the better of two each; a cell is the median of the ratios. Seconds
are those of the thread on a processor, so that other work on the machine is felt in the caches and memory alone.
Encoding is with error feedback, except for casts. `--compile` compares numba, torch and torch.compile on one codec.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from report import Table, machine_line, write_report
from torch import Tensor

from shoal.wire import kernels
from shoal.wire.codec import GradientCodec
from shoal.wire.codecs.cast import Bf16Codec, Fp16Codec
from shoal.wire.codecs.int8 import Int8Codec
from shoal.wire.codecs.layerk import LayerKCodec
from shoal.wire.codecs.onebit import OneBitCodec
from shoal.wire.codecs.ternary import TernaryCodec
from shoal.wire.codecs.topk import TopKCodec
from shoal.wire.codecs.twobit import TwoBitCodec
from shoal.wire.encode_context import EncodeContext
from shoal.wire.layout import FlatLayout
from shoal.wire.wrappers.feedback import ErrorFeedback
from shoal.wire.wrappers.momentum import MomentumCorrection

CASES: dict[str, tuple[GradientCodec, float]] = {
    "fp16": (Fp16Codec(), 1.0),
    "bf16": (Bf16Codec(), 1.0),
    "onebit": (ErrorFeedback(OneBitCodec()), 0.45),
    "twobit": (ErrorFeedback(TwoBitCodec(1.0)), 0.45),
    "ternary": (ErrorFeedback(TernaryCodec()), 0.45),
    "ternary golomb": (ErrorFeedback(TernaryCodec(2.5, "golomb")), 0.0),
    "int8": (ErrorFeedback(Int8Codec()), 0.3),
    "topk(0.01)": (ErrorFeedback(TopKCodec(0.01)), 0.35),
    "dgc(0.001)": (MomentumCorrection(LayerKCodec(0.001)), 0.35),
}
DECODE = 0.5


def seconds(act: Callable[[], object]) -> float:
    """Of this thread on a processor: what it waits for other work does not count, neither for codecs nor for memcpy."""
    begin = time.thread_time()
    act()
    return time.thread_time() - begin


class Case:
    """One codec with its memory, as an exchange would hold it."""

    def __init__(self, codec: GradientCodec, values: Tensor) -> None:
        self.codec, self.values, self.layout = codec, values, FlatLayout.flat(values.numel())
        self.state = codec.init_state(self.layout)
        self.area = torch.zeros(codec.max_bytes(self.layout), dtype=torch.uint8)
        self.out = torch.zeros(values.numel())
        self.length, self.step = 0, 0
        self.encode()
        self.decode()

    def encode(self) -> None:
        self.length = self.codec.encode_into(
            self.values, self.layout, self.state, EncodeContext(step=self.step), self.area
        )
        self.step += 1

    def decode(self) -> None:
        self.codec.decode_add(self.area[: self.length], self.layout, self.out)


def measure(elements: int, rounds: int) -> Table:
    values, target = torch.randn(elements), torch.empty(elements)
    target.copy_(values)
    table = Table("codec", "encode", "wanted", "decode", "wanted", "bytes sent", "memcpy GB/s")
    for name, (codec, wanted) in CASES.items():  # one at a time: all together would not fit the memory
        case = Case(codec, values)
        encodes, decodes, copies = [], [], []
        for _ in range(rounds):
            copy = min(seconds(lambda: target.copy_(values)) for _ in range(2))
            encodes.append(copy / min(seconds(case.encode) for _ in range(2)))
            decodes.append(copy / min(seconds(case.decode) for _ in range(2)))
            copies.append(4 * elements / copy / 1e9)
        cells = [statistics.median(kind) for kind in (encodes, decodes, copies)]
        ratio = case.length / (4 * elements)
        table.add(
            name, f"{cells[0]:.2f}", f"{wanted:.2f}", f"{cells[1]:.2f}", DECODE, f"1/{1 / ratio:.1f}", f"{cells[2]:.1f}"
        )
    return table


def signs(values: Tensor, rest: Tensor) -> tuple[Tensor, Tensor]:
    """What onebit does, in torch, on blocks of 2048: for torch.compile."""
    whole = (values + rest).view(-1, 2048)
    up = whole >= 0
    above = up.sum(1, keepdim=True)
    high = torch.where(up, whole, 0).sum(1, keepdim=True) / above.clamp(min=1)
    low = torch.where(up, 0, whole).sum(1, keepdim=True) / (2048 - above).clamp(min=1)
    weights = torch.tensor([1, 2, 4, 8, 16, 32, 64, 128], dtype=torch.uint8)
    packed = (up.view(-1, 8).to(torch.uint8) * weights).sum(1, dtype=torch.uint8)
    return packed, (whole - torch.where(up, high, low)).view(-1)


def compare(elements: int, rounds: int) -> Table:
    """Three ways to the same codec. torch.compile needs a C++ compiler where it runs."""
    elements = elements // 2048 * 2048
    values, rest, target = torch.randn(elements), torch.zeros(elements), torch.empty(elements)
    ways: dict[str, Callable[[], object]] = {
        "numba": Case(ErrorFeedback(OneBitCodec()), values).encode,
        "torch": lambda: rest.copy_(signs(values, rest)[1]),
    }
    compiled = torch.compile(signs)
    begin = time.perf_counter()
    try:
        compiled(values, rest)
        print(f"torch.compile compiled in {time.perf_counter() - begin:.1f} s")
        ways["torch.compile"] = lambda: rest.copy_(compiled(values, rest)[1])
    except Exception as error:  # noqa: BLE001  (no compiler here: that is the result)
        print(f"torch.compile: {type(error).__name__}: {str(error).splitlines()[0][:100]}")
    table = Table("onebit by", "encode / memcpy")
    for name, act in ways.items():
        ratios = [seconds(lambda: target.copy_(values)) / seconds(act) for _ in range(rounds)]
        table.add(name, f"{statistics.median(ratios):.2f}")
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--elements", type=int, default=25_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--out", type=Path, help="folder for a dated report")
    args = parser.parse_args()
    torch.set_num_threads(1)
    begin = time.perf_counter()
    kernels.warm()
    note = f"Kernels ready after {time.perf_counter() - begin:.1f} s (compiled, or read from the cache)."
    print(machine_line(), note, sep="\n")
    table = compare(args.elements, args.rounds) if args.compile else measure(args.elements, args.rounds)
    if args.out:
        write_report(args.out, "kernels", "Codecs against memcpy", [machine_line(), note], table)


if __name__ == "__main__":
    main()
