"""The demo's plans can all be read: what CI runs last must not be the first to find out."""

import importlib.util
from pathlib import Path

from shoal.plan.plan import Plan
from shoal.plan.rules import check

FILE = Path(__file__).parents[2] / "examples" / "demo.py"


def test_every_plan_of_the_demo_can_be_read() -> None:
    spec = importlib.util.spec_from_file_location("demo", FILE)
    assert spec is not None
    assert spec.loader is not None
    demo = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(demo)
    for text, workers in demo.plans():
        check(Plan.parse(text), workers)
