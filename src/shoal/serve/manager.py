"""The manager: loads what should be served, then lets go of what should not, within a memory budget.

A new version is loaded beside the one it replaces; requests move over in one assignment, and the old one is unloaded
when its last request is answered. So a swap fails no request, and needs memory for both. What does not fit the
budget, or does not load, is refused; what is served stays.
"""

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from shoal.core.errors import ShoalError
from shoal.serve.errors import LoadRefused, ModelMissing
from shoal.serve.loader import ServableLoader
from shoal.serve.stream import VersionStream
from shoal.serve.version import ServableVersion

# Four minutes at the usual poll of a second.
MOST_PAUSE = 256
"""Polls between two attempts to load what failed."""

Listener = Callable[[ServableVersion], None]


class ServableManager:
    """Any thread may ask; `apply` is called by one thread at a time."""

    def __init__(
        self,
        budget: int | None = None,
        listener: Listener | None = None,
        submit: Callable[[Callable[[], None]], object] | None = None,
    ) -> None:
        """`submit` runs what takes long (unloading) elsewhere than where a request ends; without it, there."""
        self._budget = budget
        self._submit = submit or (lambda work: work())
        self._tell = listener or (lambda version: None)
        self._lock = threading.Lock()
        self._versions: dict[str, dict[int, ServableVersion]] = {}
        self._serving: dict[str, int] = {}
        """Of each name the version that answers requests without a number."""

    def apply(self, stream: VersionStream, loaders: Mapping[int, ServableLoader]) -> None:
        """Make the wanted versions of a stream the ones that are served."""
        known = self._versions.setdefault(stream.name, {})
        self._forget(known, stream)
        wanted = stream.wanted()
        for number in wanted:
            version = known.get(number)
            if version is not None and version.state == "failed" and version.pause:
                version.pause -= 1  # ever longer: a damaged file of gigabytes must not be read every second
            elif version is None or version.state in ("ended", "failed"):
                self._load(known, stream.name, number, loaders[number])
        usable = [number for number in wanted if number in known and known[number].state == "available"]
        if not usable:
            return  # nothing better came of it: what is served goes on
        with self._lock:
            # One assignment under the lock: every request finds the old version or the new.
            self._serving[stream.name] = usable[-1]
            leaving = [each for each in known.values() if each.state == "available" and each.number not in usable]
            for version in leaving:
                version.enter("draining")
        for version in leaving:
            self._tell(version)
            self._end_if_idle(version)

    def _forget(self, known: dict[int, ServableVersion], stream: VersionStream) -> None:
        """Drop what is over and exists no more, so that a server may run for years."""
        with self._lock:
            for number in set(known) - set(stream.numbers):
                if known[number].state in ("ended", "failed") and not known[number].memory:
                    del known[number]

    def _load(self, known: dict[int, ServableVersion], name: str, number: int, loader: ServableLoader) -> None:
        before = known.get(number)
        version = ServableVersion(name, number, loader, failures=before.failures if before is not None else 0)
        try:
            # By the estimate, because a load that does not fit could end the whole process.
            version.memory = loader.estimate()
            self._check_budget(version)
        except (ShoalError, OSError) as error:
            version.enter("failed")
            version.error = str(error)
        with self._lock:
            # Listed before it is loaded, so that its memory is counted and its state can be asked for.
            known[number] = version
        if version.state == "failed":
            version.memory = 0
            if before is None or before.error != version.error:
                self._tell(version)
            return
        self._bring_up(version)

    def _bring_up(self, version: ServableVersion) -> None:
        version.enter("loading")
        self._tell(version)
        try:
            version.servable = version.loader.load()
        except Exception as error:  # noqa: BLE001  (loaders run libraries and code of users)
            version.error = str(error) or type(error).__name__
            version.memory = 0
            version.failures += 1
            # Doubled, because what failed once usually fails again: a damaged file, or too little memory.
            version.pause = min(MOST_PAUSE, 2**version.failures)
            version.enter("failed")
        else:
            with self._lock:
                version.enter("available")
        self._tell(version)

    def _check_budget(self, version: ServableVersion) -> None:
        used = self.memory()
        if self._budget is not None and used + version.memory > self._budget:
            raise LoadRefused(
                f"{version.ref} needs {version.memory} bytes beside {used} that are in use; the budget is "
                f"{self._budget}; give more with --memory, or serve less"
            )

    def memory(self) -> int:
        """Bytes that the loaded versions were estimated to take."""
        with self._lock:
            return sum(each.memory for known in self._versions.values() for each in known.values())

    @contextmanager
    def use(self, name: str, number: int | None = None) -> Iterator[ServableVersion]:
        """The version that answers a request; it stays loaded until the block ends."""
        version = self.acquire(name, number)
        try:
            yield version
        finally:
            self.release(version)

    def acquire(self, name: str, number: int | None = None) -> ServableVersion:
        with self._lock:
            version = self._find(name, number)
            version.users += 1
            return version

    def _find(self, name: str, number: int | None) -> ServableVersion:
        known = self._versions.get(name)
        if known is None:
            raise ModelMissing(f"no model {name[:80]!r} here; there is {', '.join(self._versions) or 'none'}")
        version = known.get(self._serving.get(name, -1) if number is None else number)
        if version is None or version.state != "available":
            there = ", ".join(str(each.number) for each in known.values() if each.state == "available")
            asked = "" if number is None else f" {number}"
            raise ModelMissing(f"version{asked} of {name!r} is not loaded; loaded: {there or 'none'}")
        return version

    def release(self, version: ServableVersion) -> None:
        with self._lock:
            version.users -= 1
        self._end_if_idle(version)

    def _end_if_idle(self, version: ServableVersion) -> None:
        with self._lock:
            if version.state != "draining" or version.users:
                return
            version.enter("ended")
            version.servable = None
        # Not under the lock, and not in the request's own thread: unloading may take seconds.
        self._submit(lambda: self._unload(version))

    def _unload(self, version: ServableVersion) -> None:
        version.loader.unload()
        version.memory = 0  # counted until here, so that the budget never promises it too early
        self._tell(version)

    def retire(self, name: str) -> None:
        """Let go of every version of a model; the next `apply` loads them again."""
        with self._lock:
            self._serving.pop(name, None)
            leaving = [each for each in self._versions.get(name, {}).values() if each.state == "available"]
            for version in leaving:
                version.enter("draining")
        for version in leaving:
            self._tell(version)
            self._end_if_idle(version)

    def serving(self, name: str) -> int | None:
        return self._serving.get(name)

    def versions(self, name: str | None = None) -> list[ServableVersion]:
        """Everything known, or of one model, by name and number."""
        with self._lock:
            names = sorted(self._versions) if name is None else [name]
            return [version for each in names for _, version in sorted(self._versions.get(each, {}).items())]
