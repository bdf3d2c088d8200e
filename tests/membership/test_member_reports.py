"""What a worker repeats with every beat, and when it stops."""

from shoal.membership.member_reports import MemberReports
from shoal.membership.protocol import PlanRequest, SuspectMember
from shoal.membership.view import MembershipView

FIRST = MembershipView(1, ("w0", "w1"))
SWITCHED = MembershipView(2, ("w0", "w1"), plan="int8", switches=1)


def test_a_plan_is_asked_for_until_a_view_has_it() -> None:
    reports = MemberReports("w0")
    reports.request_plan("int8", FIRST)
    assert list(reports.due(FIRST)) == list(reports.due(FIRST)) == [PlanRequest(member="w0", plan="int8", number=1)]
    assert not list(reports.due(SWITCHED))


def test_a_second_request_is_later_than_the_first_although_no_view_has_that() -> None:
    reports = MemberReports("w0")
    reports.request_plan("int8", FIRST)
    reports.request_plan("fp16", FIRST)
    assert list(reports.due(SWITCHED)) == [PlanRequest(member="w0", plan="fp16", number=2)]


def test_accusations_end_with_the_view_and_suspicions_when_the_member_is_heard() -> None:
    reports = MemberReports("w0")
    reports.accuse("w1", "row 9 of 5")
    reports.doubt({"w1": True})
    assert list(reports.due(FIRST)) == [
        SuspectMember(member="w0", of="w1", closed=True),
        SuspectMember(member="w0", of="w1", reason="row 9 of 5"),
    ]
    reports.begin_view()
    reports.doubt({})
    assert not list(reports.due(FIRST))
