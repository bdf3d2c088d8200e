"""What `shoal doctor` finds out, a line for each thing that was looked at."""

from dataclasses import dataclass


@dataclass(frozen=True)
class DoctorFinding:
    """One line: what was looked at, what was found, and the way out if it does not do."""

    what: str
    found: str
    good: bool = True
    remedy: str = ""

    def __str__(self) -> str:
        text = f"{'ok  ' if self.good else 'LACK'}  {self.what}: {self.found}"
        return f"{text}; {self.remedy}" if self.remedy and not self.good else text
