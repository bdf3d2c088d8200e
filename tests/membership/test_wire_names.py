"""Names on the wire and in a coordinator's log are frozen: a file or a peer of the same protocol keeps being read."""

import msgspec

from shoal.membership import grants, invitation, log_entries, protocol, server, view

FROZEN = {
    "MemberInfo": (None, "address public host guest house"),
    "JoinRequest": ("JoinRequest", "member plate waits"),
    "Heartbeat": ("Heartbeat", "member epoch promised applied step period idle doing sent"),
    "ProposeAck": ("ProposeAck", "member epoch applied formed blank lent between dealt"),
    "SuspectMember": ("SuspectMember", "member of closed reason late"),
    "LeaveRequest": ("LeaveRequest", "member early step fingerprint"),
    "ProcessExited": ("ProcessExited", "member reason"),
    "PlanRequest": ("PlanRequest", "member plan number"),
    "LeaseRenewal": ("LeaseRenewal", "sent seconds"),
    "ProposeView": ("ProposeView", "view missing step"),
    "InstallView": ("InstallView", "view through fresh lent between dealt donor plates"),
    "StreamStateTo": ("StreamStateTo", "epoch member plate"),
    "StreamStateFrom": ("StreamStateFrom", "epoch member plate patience"),
    "MemberEvicted": ("MemberEvicted", "epoch reason"),
    "RunOver": ("RunOver", "well reason"),
    "JoinRefused": ("JoinRefused", "reason later"),
    "ConfirmResult": ("ConfirmResult", "member epoch number"),
    "ViewProposed": ("Proposed", "epoch"),
    "ViewInstalled": ("Installed", "install"),
    "MemberLost": ("Lost", "member reason"),
    "MembershipView": (None, "epoch members plan switches"),
    "KeyBound": ("KeyBound", "member key"),
    "SlotGranted": ("SlotGranted", "member key token"),
    "RunQuery": ("RunQuery", "workers token versions seat look"),
    "RunBrief": ("RunBrief", "run name script arguments plan seed checkpoint until members codecs servers founding"),
}
"""By class: its tag, and the names of its fields as they are encoded, in order."""


def test_classes_and_fields_may_be_renamed_but_not_what_is_written() -> None:
    modules = (protocol, view, log_entries, grants, invitation, server)
    classes = {name: each for module in modules for name, each in vars(module).items() if name in FROZEN}
    assert classes.keys() == FROZEN.keys()
    for name, (tag, fields) in FROZEN.items():
        struct = classes[name]
        assert issubclass(struct, msgspec.Struct)
        assert struct.__struct_config__.tag == tag, name
        assert struct.__struct_encode_fields__ == tuple(fields.split()), name


def test_a_log_entry_written_under_the_older_names_is_read() -> None:
    old = {
        "type": "Installed",
        "install": {"type": "InstallView", "view": {"epoch": 7, "members": ["a"]}, "through": 3},
    }
    entry = msgspec.msgpack.decode(msgspec.msgpack.encode(old), type=log_entries.Entry)
    assert isinstance(entry, log_entries.ViewInstalled)
    assert entry.install.view.generation == 7
