"""The lab's switch on a virtual clock: the product's `LabSwitch` talks to link.c, and only `until` lets time pass."""

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

from shoal.lab.host import LabHost
from shoal.lab.switch import SOURCE, LabSwitch, compiler

HEADERS = 42
"""Bytes of Ethernet, IP and UDP before the payload."""


def compile_virtual(folder: Path) -> Path:
    """Build link.c with the clock and the devices of virtual_switch.c."""
    built, source = folder / "virtual-switch", Path(__file__).with_name("virtual_switch.c")
    subprocess.run([compiler() or "cc", "-O1", "-I", SOURCE.parent, "-o", built, source], check=True)
    return built


@dataclass(frozen=True)
class Arrival:
    host: int
    seconds: float
    number: int
    data: bytes


def frame(target: int, number: int, size: int) -> bytes:
    """An Ethernet frame of `size` bytes with a UDP datagram whose payload repeats `number`."""
    mac = bytes.fromhex(LabHost(target, "", "").mac.replace(":", ""))
    ipv4 = bytes([0x45, *bytes(8), 17, *bytes(10)])
    payload = (number.to_bytes(4, "big") * (size // 4 + 1))[: size - HEADERS]
    return mac + bytes(6) + b"\x08\x00" + ipv4 + bytes(8) + payload


class VirtualSwitch(LabSwitch):
    """Hosts are ports; frames are sent at `now` and arrive while `until` lets time pass."""

    def __init__(self, program: Path, hosts: int = 2, seed: int = 5) -> None:
        super().__init__(program, os.getpid(), seed, [str(host) for host in range(hosts)])
        self.now = 0.0

    def send(self, source: int, target: int, number: int = 0, size: int = 142) -> None:
        self.ask(f"frame {source} {frame(target, number, size).hex()}")

    def until(self, seconds: float) -> list[Arrival]:
        self.now = seconds
        (answer,) = self.ask(f"until {round(seconds * 1e9)}")
        return [] if answer == "none" else [_arrival(word) for word in answer.split()]

    def stream(self, count: int, interval: float = 1e-4, source: int = 0, target: int = 1) -> list[Arrival]:
        """Send numbered frames at this pace, wait until the last has arrived, and return all arrivals in order."""
        arrivals = []
        for number in range(count):
            self.send(source, target, number)
            arrivals += self.until(self.now + interval)
        return arrivals + self.until(self.now + 60.0)


def _arrival(word: str) -> Arrival:
    host, nanoseconds, data = word.split(":")
    raw = bytes.fromhex(data)
    return Arrival(int(host), int(nanoseconds) / 1e9, int.from_bytes(raw[HEADERS : HEADERS + 4], "big"), raw)
