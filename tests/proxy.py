"""A relay between two sockets that can be told to break off, to hold everything back, or to damage what it carries."""

import contextlib
import random
import selectors
import socket
import threading


class Proxy:
    """Listens on loopback and passes everything on to `target`; one thread for all connections."""

    def __init__(self, target: str) -> None:
        host, _, port = target.removeprefix("tcp://").rpartition(":")
        self.target = (host, int(port))
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"tcp://127.0.0.1:{self.listener.getsockname()[1]}"
        self.held = threading.Event()
        self.passed = 0
        self.cuts = 0
        self._cut_at: int | None = None
        self._ending = False
        self._selector = selectors.DefaultSelector()
        self._selector.register(self.listener, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def cut_after(self, size: int) -> None:
        """Break all connections off when so many bytes more have passed."""
        self._cut_at = self.passed + size

    def close(self) -> None:
        self._ending = True
        self._thread.join(10.0)

    def _run(self) -> None:
        while not self._ending:
            for key, _ in self._selector.select(0.01):
                if key.fileobj is self.listener:
                    self._welcome()
                elif not self.held.is_set() and key.fileobj.fileno() >= 0:  # else closed with its other end just now
                    self._pass(key.fileobj, key.data)
        self._break()
        self.listener.close()
        self._selector.close()

    def _welcome(self) -> None:
        near, _ = self.listener.accept()
        try:
            far = socket.create_connection(self.target, timeout=5.0)
        except OSError:
            near.close()
            return
        self._selector.register(near, selectors.EVENT_READ, far)
        self._selector.register(far, selectors.EVENT_READ, near)

    def _pass(self, source: socket.socket, target: socket.socket) -> None:
        try:
            data = source.recv(1 << 14)
            target.sendall(self.alter(data))
        except OSError:
            data = b""
        self.passed += len(data)
        if not data:
            for end in (source, target):
                with contextlib.suppress(KeyError):
                    self._selector.unregister(end)
                end.close()
        elif self._cut_at is not None and self.passed >= self._cut_at:
            self._cut_at = None
            self.cuts += 1
            self._break()

    def alter(self, data: bytes) -> bytes:
        """What is passed on instead of `data`."""
        return data

    def _break(self) -> None:
        for key in list(self._selector.get_map().values()):
            if key.fileobj is not self.listener:
                self._selector.unregister(key.fileobj)
                key.fileobj.close()


class Faulty(Proxy):
    """Damages a piece now and then: after `every` bytes, and at most twice that; the seed decides when and where."""

    def __init__(self, target: str, kind: str, seed: int, every: int) -> None:
        self.kind, self.every, self.done = kind, every, 0
        self._chance = random.Random(seed)
        self._left = self._next()
        super().__init__(target)

    def _next(self) -> int:
        return self._chance.randrange(self.every, 2 * self.every)

    def alter(self, data: bytes) -> bytes:
        self._left -= len(data)
        if self._left > 0 or len(data) < 2:
            return data
        self._left, self.done = self._next(), self.done + 1
        place = self._chance.randrange(1, len(data))
        match self.kind:
            case "cut":
                self.cut_after(place)
                return data[:place]
            case "flip":
                return data[:place] + bytes([data[place] ^ 1 << self._chance.randrange(8)]) + data[place + 1 :]
            case "twice":
                return data + data[-place:]
            case "swap":
                return data[place:] + data[:place]
            case "drop":
                return data[:place]
        return data
