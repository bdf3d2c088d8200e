"""Reading published pages: tables as rows, cells as numbers."""

import re


def tables(page: str) -> list[list[dict[str, str]]]:
    """Every table of a page, as rows of column -> cell."""
    found = []
    for block in re.findall(r"(?:^\|.*\|\n)+", page, re.M):
        lines = [[cell.strip() for cell in line.strip("|\n").split("|")] for line in block.splitlines()]
        found.append([dict(zip(lines[0], line, strict=True)) for line in lines[2:]])
    return found


def named(rate: float, delay: float) -> str:
    speed = {0: "no limit"}.get(rate) or (f"{rate // 10**9} Gbit/s" if rate >= 10**9 else f"{rate // 10**6} Mbit/s")
    return f"{speed}, {delay * 1000:.0f} ms a link"


def number(cell: str) -> float:
    return float(re.match(r"-?[\d.]+", cell)[0])  # type: ignore[index]


def quartiles(cell: str) -> list[float]:
    return [float(word) for word in re.findall(r"[\d.]+", cell)]
