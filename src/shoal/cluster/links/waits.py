"""Whether something can be read from a socket: to try and fail costs three times as much, for an error is words.

Where there is something, it may still be a message of which the rest is under way: reading it may fail all the same.
"""

import zmq


def waits(socket: "zmq.Socket[bytes]") -> bool:
    return bool(int(socket.getsockopt(zmq.EVENTS)) & zmq.POLLIN)
