"""What came is not what may come."""

from shoal.core.errors import ShoalError


class Refused(ShoalError):  # noqa: N818  (of a message, not a mistake of ours)
    """A message or frame that is dropped: the sender will send it again, if it was one of ours."""
