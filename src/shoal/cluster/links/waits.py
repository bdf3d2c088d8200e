"""Whether something can be read from a socket: to try and fail costs three times as much, for an error is words.

Where there is something, it may still be a message of which the rest is under way: reading it may fail all the same.
"""

import zmq

_READABLE = int(zmq.POLLIN)
"""As a plain number: a flag makes another flag of what it meets, which takes longer than to ask the socket."""


def waits(socket: "zmq.Socket[bytes]") -> bool:
    return bool(int(socket.getsockopt(zmq.EVENTS)) & _READABLE)
