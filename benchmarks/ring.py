"""The all-reduce over links against gloo, on the hosts of a lab, and against what the ring could do at best.

    python benchmarks/ring.py [--case "4 hosts, 100mbit, 20ms: 10MB"] … [--repeats 3]

All live in the same processes, one on every host, and take turns. All begin at the same moment (one machine has one
clock); a turn lasts until the last is done. Ideal: 2 (p-1)/p of the bytes at the link's rate, plus 2 (p-1) times
the delay of one way, which is that of two links. Beside them plain TCP: as many bytes from each host to the next, in
one piece, without adding, waiting or encrypting anything.
"""

import argparse
import socket
import statistics
import tempfile
import threading
import time
from contextlib import ExitStack
from pathlib import Path

import msgspec
import torch
from report import Table, machine_line, write_report
from torch._C._distributed_c10d import FileStore

from shoal.core.clock import now
from shoal.groups.links import LinkedGroup
from shoal.groups.process_group import gloo
from shoal.lab.inside import Say, inside
from shoal.lab.lab import NetworkLab
from shoal.lab.load import parse_lab
from shoal.lab.spec import LabSpec
from shoal.sync.engine.links import LinkEngine
from shoal.transport.endpoint import BookEntry, LinkEndpoint
from shoal.transport.keys import CurveKeyPair
from shoal.wire.bucket import BucketSpace

CASES = [
    "4 hosts, 100mbit: 10MB",
    "4 hosts, 100mbit, 20ms: 10MB",
    "4 hosts, 100mbit, 40ms: 10MB",
    "2 hosts, 1gbit: 10MB",
    "4 hosts, 100mbit: 1MB",
    "4 hosts, 100mbit: 64KB",
    "4 hosts, 100mbit: 4KB",
    "4 hosts, 100mbit, 5ms: 4KB",
    "2 hosts, 1gbit: 64KB",
    "2 hosts, 1gbit: 4KB",
]
UNITS = {"KB": 1000, "MB": 1_000_000}
PORT = 7700
PLAIN = 7701
CONTESTANTS = 3


class Plain:
    """TCP connections round the ring, with nothing on top."""

    def __init__(self, addresses: list[str], rank: int, size: int) -> None:
        p = len(addresses)
        self._leaving, self._came = bytearray(size * 2 * (p - 1) // p), bytearray(size * 2 * (p - 1) // p)
        self._door = socket.create_server((addresses[rank], PLAIN))
        self._next = addresses[(rank + 1) % p], PLAIN

    def meet(self) -> None:
        """When all endpoints are open."""
        self._out = socket.create_connection(self._next, 30.0)
        self._into, _ = self._door.accept()
        for each in (self._out, self._into):
            each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def send_all(self) -> None:
        sender = threading.Thread(target=self._out.sendall, args=(self._leaving,))
        sender.start()
        view, got = memoryview(self._came), 0
        while got < len(view):
            got += self._into.recv_into(view[got:])
        sender.join(60.0)


def worker(
    say: Say, folder: str, keys: list[tuple[str, str]], addresses: list[str], rank: int, size: int, n: int, repeats: int
) -> None:
    """On one host: both all-reduces in turns; says when each turn began and when it was done here."""
    torch.set_num_threads(1)
    hosts = len(addresses)
    book = {
        r: BookEntry(f"tcp://{a}:{PORT}", k[0].encode(), str(r))
        for r, (a, k) in enumerate(zip(addresses, keys, strict=True))
    }
    mine = CurveKeyPair(*(text.encode() for text in keys[rank]))
    group = LinkedGroup("benchmark", book, rank, LinkEndpoint(book[rank].address, mine))
    engine = LinkEngine(group)
    ((leaving, result),) = engine.open([BucketSpace(n, torch.float32, torch.device("cpu"))])
    other = gloo(FileStore(f"{folder}/store", hosts), rank, hosts, 60.0)
    leaving.fill_(rank + 1.0)
    tensor = torch.ones(n)
    plain = Plain(addresses, rank, 4 * n)
    group.gather(b"")  # all endpoints are open
    plain.meet()

    def ours() -> None:
        engine.start(0)
        engine.finish(0)

    def theirs() -> None:
        other.allreduce([tensor]).wait()

    turns = []
    contestants = (ours, theirs, plain.send_all)
    for turn in range(CONTESTANTS * (repeats + 1)):
        at = max(float(text) for text in group.gather(str(now()).encode())) + 0.4
        time.sleep(max(0.0, at - now() - 0.01))
        while now() < at:
            pass
        contestants[turn % CONTESTANTS]()
        turns.append((at, now()))
    assert result[0] == result[-1] == size
    say(turns)
    group.close()


def measure(case: str, repeats: int) -> tuple[LabSpec, int, list[list[float]]]:
    """Seconds of our turns, of gloo's and of plain TCP's; the first of each does not count."""
    text, _, amount = case.partition(": ")
    spec = parse_lab(text)
    elements = int(amount[:-2]) * UNITS[amount[-2:]] // 4
    keys = [CurveKeyPair.new() for _ in range(spec.size)]
    plain = [(k.public.decode(), k.secret.decode()) for k in keys]
    total = spec.size * (spec.size + 1) // 2
    with tempfile.TemporaryDirectory() as folder, NetworkLab(spec) as lab, ExitStack() as stack:
        addresses = [host.address for host in lab.hosts]
        children = [
            stack.enter_context(inside(lab, r, worker, folder, plain, addresses, r, total, elements, repeats))
            for r in range(spec.size)
        ]
        heard = [msgspec.convert(child.hear(120.0), list[tuple[float, float]]) for child in children]
    turns = [max(done for _, done in turn) - turn[0][0] for turn in zip(*heard, strict=True)]
    return spec, elements * 4, [turns[CONTESTANTS + each :: CONTESTANTS] for each in range(CONTESTANTS)]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--case", action="append")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    machine = machine_line()
    names = [f"{name}{of}" for of in (" ms", " / ideal") for name in ("shoal", "gloo", "TCP")]
    table = Table("hosts", "rate", "delay", "bytes", "ideal ms", *names)
    for case in options.case or CASES:
        spec, size, turns = measure(case, options.repeats)
        link, p = spec.hosts[0].link, spec.size
        ideal = 2 * (p - 1) / p * size * 8 / link.rate.bits + 2 * (p - 1) * 2 * link.delay.seconds
        medians = [statistics.median(each) for each in turns]
        cells = [f"{1e3 * value:.2f}" for value in (ideal, *medians)]
        table.add(p, link.rate, link.delay, size, *cells, *(f"{value / ideal:.3f}" for value in medians))
    if options.out:
        write_report(options.out, "ring", "All-reduce over links and over gloo", [machine], table)


if __name__ == "__main__":
    main()
