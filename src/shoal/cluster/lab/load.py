"""What the command line accepts as a lab: its short text, or the path of a TOML file."""

from pathlib import Path

from shoal.cluster.lab.spec import Spec
from shoal.cluster.lab.table import parse_table
from shoal.core.errors import UsageError

SUFFIX = ".toml"
MOST_BYTES = 1 << 20


def load(given: str) -> Spec:
    """The lab that `given` describes or points to."""
    return load_file(Path(given)) if given.endswith(SUFFIX) else Spec.parse(given)


def load_file(path: Path) -> Spec:
    """The lab in a TOML file; every complaint names the file."""
    try:
        return parse_table(_read(path))
    except UsageError as error:
        raise UsageError(f"lab file {str(path)!r}: {error}") from None


def _read(path: Path) -> str:
    try:
        # Only a regular file has an end that is known beforehand; a pipe could be waited for without one.
        if not path.is_file():
            raise UsageError("no such file; write its path, or a text such as '4 hosts, 100mbit, 20ms'")
        if path.stat().st_size > MOST_BYTES:
            raise UsageError(f"holds {path.stat().st_size} bytes; at most {MOST_BYTES} are read, so shorten it")
        return path.read_bytes().decode()
    except OSError as error:
        raise UsageError(f"cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UsageError("is not text in UTF-8; save it as UTF-8") from None
