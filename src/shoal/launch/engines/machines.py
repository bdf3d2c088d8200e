"""Machines as users write them: `hostA,hostB=2`, or `@FILE` with one on a line, which may change while a run trains."""

import re
from pathlib import Path

from shoal.core.errors import UsageError
from shoal.launch.engines.base import EngineMachine

_NAME = re.compile(r"[A-Za-z0-9_.@\[\]:-]{1,255}")


class MachineList:
    """Reads its file again at each call; a file that cannot be read leaves the list as it was."""

    def __init__(self, text: str, workers: int, what: str) -> None:
        """UsageError names `what` was wrong in."""
        self._workers, self._what = workers, what
        self._file = Path(text[1:]) if text.startswith("@") else None
        self._known = self._parse(self._words() if self._file is not None else text.split(","))

    def read(self) -> list[EngineMachine]:
        if self._file is not None:
            try:
                self._known = self._parse(self._words())
            except UsageError:
                return self._known  # half written: the next look finds the rest
        return self._known

    def _words(self) -> list[str]:
        assert self._file is not None
        try:
            lines = self._file.read_text().splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"{self._what}: cannot read {str(self._file)!r}: {error}") from None
        return [line.partition("#")[0].strip() for line in lines if line.partition("#")[0].strip()]

    def _parse(self, words: list[str]) -> list[EngineMachine]:
        found: dict[str, EngineMachine] = {}
        for word in filter(None, words):
            name, _, number = word.strip().partition("=")
            if not _NAME.fullmatch(name) or name.startswith("-") or (number and not number.isdecimal()):
                raise UsageError(f"{self._what}: {word!r} is no machine; write HOST or HOST=WORKERS")
            if name in found:
                raise UsageError(f"{self._what}: {name!r} stands there twice; write {name}=WORKERS once")
            found[name] = EngineMachine(name, int(number) if number else self._workers)
        # HOST=0 takes a machine out without removing its line.
        return [machine for machine in found.values() if machine.workers]
