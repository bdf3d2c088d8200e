"""Commands for a communication thread: run in its place only while it sleeps, in order, and never after its end."""

import threading

import pytest

from shoal.transport.loop_commands import LoopCommands


def made() -> tuple[LoopCommands, list[str]]:
    wakes: list[str] = []
    return LoopCommands(lambda: wakes.append("wake")), wakes


def test_a_command_runs_here_while_the_thread_sleeps_and_wakes_nobody() -> None:
    commands, wakes = made()
    ran: list[int] = []
    commands.run_at_once(lambda: ran.append(threading.get_ident()))
    assert ran == [threading.get_ident()]
    assert not wakes
    assert not commands.turn.locked()


def test_it_waits_for_the_thread_while_that_works() -> None:
    commands, wakes = made()
    ran: list[str] = []
    with commands.turn:
        commands.run_at_once(lambda: ran.append("late"))
        assert not ran
        commands.run_all()
    assert ran == ["late"]
    assert wakes == ["wake"]


def test_what_was_posted_before_comes_first() -> None:
    commands, _ = made()
    ran: list[str] = []
    commands.post(lambda: ran.append("first"))
    commands.run_at_once(lambda: ran.append("second"))
    assert not ran
    commands.run_all()
    assert ran == ["first", "second"]


def test_a_command_that_gives_another_does_not_wait_for_itself() -> None:
    commands, _ = made()
    ran: list[str] = []
    commands.run_at_once(lambda: commands.run_at_once(lambda: ran.append("inner")))
    assert not ran
    commands.run_all()
    assert ran == ["inner"]


def test_an_error_ends_the_communication_thread_and_not_its_caller() -> None:
    commands, wakes = made()

    def fail() -> None:
        raise ZeroDivisionError("of a command")

    commands.run_at_once(fail)
    assert wakes == ["wake"]
    with pytest.raises(ZeroDivisionError, match="of a command"):
        commands.run_all()


def test_nothing_runs_here_after_the_end() -> None:
    commands, _ = made()
    ran: list[str] = []
    commands.end()
    commands.run_at_once(lambda: ran.append("on sockets that are closed"))
    assert not ran
