"""What is done when a process of a replicated service ends, without a process."""

from shoal.launch.replica_roster import LeaveAlone, PromoteReplica, ReplicaRoster, StartReplica


def test_each_dead_primary_is_followed_by_a_backup_that_has_the_state() -> None:
    roster = ReplicaRoster(2)
    assert roster.begin() == [StartReplica(0, None), StartReplica(1, 0)]
    roster.note_ready(1)
    assert roster.note_end(0) == [PromoteReplica(1, 1), StartReplica(2, 1)]
    roster.note_ready(2)
    assert roster.note_end(1) == [PromoteReplica(2, 2), StartReplica(3, 2)]
    assert roster.note_end(1) == [], "its end was known"


def test_a_dead_backup_is_replaced_and_after_the_last_one_the_primary_answers_alone() -> None:
    roster = ReplicaRoster(1)
    roster.note_ready(1)
    assert roster.note_end(1) == [StartReplica(2, 0)]
    assert roster.note_end(2) == [LeaveAlone(0)]
    roster.note_ready(2)
    assert not roster.is_ready, "the word of a process that has ended comes late"
    assert roster.note_end(0) == []
    assert roster.is_lost


def test_without_a_backup_that_has_the_state_nobody_answers_in_its_place() -> None:
    roster = ReplicaRoster(3)
    assert roster.note_end(0) == []
    assert roster.is_lost


def test_when_both_end_at_once_the_state_is_lost_whichever_is_noticed_first() -> None:
    for first, second in ((0, 1), (1, 0)):
        roster = ReplicaRoster(3)
        roster.note_ready(1)
        roster.note_end(first)
        assert not roster.is_lost
        assert roster.note_end(second) == []
        assert roster.is_lost
