"""One transaction a step: who calls the session, what several parts of a pass do, and what a lost member changes."""

import ast
from pathlib import Path

import pytest

import shoal
from shoal.core.errors import ViewEnded
from shoal.membership.session import FixedSession
from shoal.membership.view import MembershipView
from shoal.sync.cost import ExchangeCost
from shoal.train.step_transaction import StepTransaction

SOURCE = Path(shoal.__file__).parent
OPERATIONS = {"enter", "complete", "settle", "outside"}
"""Of a session: what begins and ends an operation of the members."""


def calls(path: Path) -> set[str]:
    """Operations that a module calls on something named session."""
    found, text = set(), path.read_text()
    if not any(f"session.{operation}(" in text for operation in OPERATIONS):
        return found  # to parse every module takes seconds
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in OPERATIONS:
            owner = node.func.value
            name = owner.attr if isinstance(owner, ast.Attribute) else getattr(owner, "id", "")
            if name.strip("_") == "session":
                found.add(node.func.attr)
    return found


def test_nothing_else_calls_the_session() -> None:
    callers = {str(path.relative_to(SOURCE)): found for path in SOURCE.rglob("*.py") if (found := calls(path))}
    assert callers == {"train/step_transaction.py": {"enter", "complete", "settle"}}


class Scripted(FixedSession):
    """A session whose operations end as the test says: "lost" (do it again), "held" (it counts), or complete."""

    def __init__(self, log: list[str], *endings: str) -> None:
        super().__init__(0, 2)
        self.log, self.endings = log, list(endings)
        self.last = ""

    def enter(self, holds):
        self.log.append("enter")
        self.holds = holds

    def complete(self):
        self.log.append("complete")
        self.last = self.endings.pop(0) if self.endings else ""
        if self.last:
            raise ViewEnded("a member is lost")

    def settle(self):
        self.log.append("settle")
        self.view = MembershipView(self.view.generation + 1, self.view.members[:1])
        return self.last == "held"


class Recorded:
    """A participant that writes down what it is told."""

    def __init__(self, name: str, log: list[str], unprepared: int = 0) -> None:
        self.name, self.log, self.unprepared, self.spent, self.running = name, log, unprepared, ExchangeCost(), True

    def prepare(self) -> None:
        self.log.append(f"{self.name}.prepare")
        if self.unprepared:
            self.unprepared -= 1
            raise ViewEnded("a member is lost")

    def is_complete(self) -> bool:
        return f"{self.name}.finish" in self.log

    def abandon(self) -> bool:
        self.log.append(f"{self.name}.abandon")
        return self.name == "left"

    def is_running(self) -> bool:
        return self.running

    def __getattr__(self, called: str):
        return lambda: self.log.append(f"{self.name}.{called}")


@pytest.fixture
def log() -> list[str]:
    return []


def test_parts_of_one_pass_are_one_operation(log: list[str]) -> None:
    session = Scripted(log)
    announced = []
    transaction = StepTransaction(session, lambda parts: announced.append([part.name for part in parts]))
    transaction.starts_at_end = True
    a, b = Recorded("a", log), Recorded("b", log)
    for part in (a, b):
        transaction.begin(part)
    assert "enter" not in log
    transaction.end(a)
    assert "complete" not in log, "b's pass still runs"
    transaction.end(b)
    assert log[4:] == [
        *("enter", "a.prepare", "b.prepare", "a.launch", "b.launch", "a.finish", "b.finish"),
        *("complete", "a.deliver", "b.deliver"),
    ]
    assert announced == [["a", "b"]]


def test_a_lost_member_means_once_more(log: list[str]) -> None:
    a = Recorded("a", log)
    transaction = StepTransaction(Scripted(log, "lost", "held"))
    transaction.begin(a)
    transaction.end(a)
    assert log[3:] == [
        *("a.launch", "a.finish", "complete", "settle", "a.retry"),
        *("a.finish", "complete", "settle", "a.deliver"),
    ]


def test_what_is_finished_when_a_member_is_lost_is_not_read_again(log: list[str]) -> None:
    """Whoever has completed the operation may write the next one's numbers there: only the rest is finished alone."""
    session = Scripted(log)

    class Interrupted(Recorded):
        def finish(self) -> None:
            session.last = "held"
            raise ViewEnded("a member is lost")

    transaction = StepTransaction(session)
    transaction.starts_at_end = True
    a, b = Recorded("a", log), Interrupted("b", log)
    for part in (a, b):
        transaction.begin(part)
    for part in (a, b):
        transaction.end(part)
    assert log[-5:] == ["a.finish", "settle", "b.finish_locally", "a.deliver", "b.deliver"]


def test_a_view_that_ends_before_anything_has_left(log: list[str]) -> None:
    a = Recorded("a", log, unprepared=2)
    transaction = StepTransaction(Scripted(log))
    transaction.begin(a)
    assert log == ["a.begin", *("enter", "a.prepare", "settle") * 2, "enter", "a.prepare"]


def test_whether_it_counts_is_asked_of_all_parts(log: list[str]) -> None:
    """Until the last one is finished it does not: another thread may ask at any moment."""
    session, answers = Scripted(log), []

    class Asking(Recorded):
        def launch(self) -> None:
            answers.append(session.holds())

        def finish(self) -> None:
            answers.append(session.holds())
            self.log.append(f"{self.name}.finish")

        def deliver(self) -> None:
            answers.append(session.holds())

    transaction = StepTransaction(session)
    transaction.starts_at_end = True
    parts = Asking("a", log), Asking("b", log)
    for part in parts:
        transaction.begin(part)
    for part in parts:
        transaction.end(part)
    assert answers == [False] * 4 + [True] * 2


@pytest.mark.parametrize("name", ["left", "held back"])
def test_a_pass_that_an_exception_ended_comes_to_nothing(log: list[str], name: str) -> None:
    """What has left of it is finished; and another part's pass does not wait for it."""
    lost, b = Recorded(name, log), Recorded("b", log)
    transaction = StepTransaction(Scripted(log))
    transaction.begin(lost)
    lost.running = False
    transaction.begin(b)
    transaction.end(b)
    finished = [f"{name}.finish", "complete"] if name == "left" else []
    start = log.index(f"{name}.abandon")
    assert log[start:] == [
        *(f"{name}.abandon", *finished, f"{name}.reset"),
        *("b.launch", "b.finish", "complete", "b.deliver"),
    ]


def test_a_transaction_outside_of_backward_passes(log: list[str]) -> None:
    a = Recorded("a", log)
    session = Scripted(log)
    assert StepTransaction(session).run(a) is session.committed_view
    assert log == ["a.begin", "enter", "a.prepare", "a.launch", "a.finish", "complete", "a.deliver"]
