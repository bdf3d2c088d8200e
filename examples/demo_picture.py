"""The demo's picture: the steps of a worker while another is killed, and seconds to the goal over a slow network."""

from collections.abc import Sequence
from html import escape
from pathlib import Path

WIDTH, ROW, LEFT, TOP = 720, 26, 150, 34
CHART = 110
INK, BLUE, GREY = "#1b2733", "#2f6f9f", "#c9d1d9"


def text(x: float, y: float, words: str, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="13" fill="{INK}">{escape(words)}</text>'


def rectangle(x: float, y: float, width: float, height: float, fill: str) -> str:
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{max(1.0, width):.1f}" height="{height:.1f}" fill="{fill}"/>'


def step_chart(steps: Sequence[tuple[float, float]], top: float) -> list[str]:
    """A bar for each step: where it ended, as high as it was long; the longest is the pause."""
    if not steps:
        return []
    end, longest = max(at for at, _ in steps) or 1.0, max(seconds for _, seconds in steps)
    items = [text(10, top - 12, f"worker 0 while worker 1 is killed: every step, the longest {longest:.2f} s")]
    for at, seconds in steps:
        height = CHART * seconds / longest
        fill = BLUE if seconds == longest else GREY
        items.append(rectangle(10 + (WIDTH - 30) * at / end, top + CHART - height, 2, height, fill))
    return [*items, text(10, top + CHART + 16, "0 s"), text(WIDTH - 10, top + CHART + 16, f"{end:.1f} s", "end")]


def goal_chart(bars: Sequence[tuple[str, float]], goal: float, top: float) -> list[str]:
    if not bars:
        return []
    items = [text(10, top - 12, f"seconds to {100 * goal:.0f} % accuracy over 20 Mbit/s, two hosts")]
    most = max(seconds for _, seconds in bars)
    for number, (name, seconds) in enumerate(bars):
        y, width = top + ROW * number, (WIDTH - LEFT - 80) * seconds / most
        items += [text(LEFT - 8, y + 15, name, "end"), rectangle(LEFT, y + 2, width, ROW - 8, BLUE)]
        items.append(text(LEFT + width + 6, y + 15, f"{seconds:.1f}"))
    return items


def draw(path: Path, steps: Sequence[tuple[float, float]], bars: Sequence[tuple[str, float]], goal: float) -> None:
    """Write an SVG of whatever was measured."""
    second = TOP + (CHART + 60 if steps else 0)
    height = second + ROW * len(bars) + 10
    items = [*step_chart(steps, TOP), *goal_chart(bars, goal, second)]
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="system-ui, sans-serif">'
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f'{head}<rect width="100%" height="100%" fill="#ffffff"/>{"".join(items)}</svg>\n')
