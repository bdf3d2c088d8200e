"""What the command line names becomes sources: `digits@prod`, `name=path`, a file, a folder of versions."""

import re
from pathlib import Path

from shoal.core.errors import UsageError
from shoal.core.ids import PATTERN, check_id
from shoal.models.registry import Registry
from shoal.models.version import ModelRef
from shoal.serve.source import (
    ENDINGS,
    FileSource,
    FolderSource,
    LoadOptions,
    ObjectSource,
    RegistrySource,
    VersionSource,
)


class SourceFinder:
    """Makes sources of words; what they have in common is given once."""

    def __init__(self, registry: Registry, how: LoadOptions | None = None) -> None:
        self._registry, self._how = registry, how or LoadOptions()

    def find(self, word: str) -> VersionSource:
        """The source of `[NAME=]WHAT`; UsageError if there is nothing of the kind."""
        name, equals, what = word.partition("=")
        # A path may hold an equals sign too; then what stands before it is no name.
        if not equals or not PATTERN.fullmatch(name):
            name, what = "", word
        path = Path(what).expanduser()
        if path.is_dir():
            return FolderSource(name or self._name_of(path), path, self._how)
        if re.fullmatch(r".+\.py:[A-Za-z_]\w*", what):
            return ObjectSource(name or self._name_of(Path(what.rpartition(":")[0])), what)
        if path.suffix in ENDINGS or "/" in what:
            if not path.is_file():
                raise UsageError(f"no file or folder {what!r}; serve {', '.join(ENDINGS)}, or a model of the registry")
            return FileSource(name or self._name_of(path), path, self._how)
        ref = ModelRef.parse(what)
        return RegistrySource(name or ref.name, what, self._registry, self._how)

    def _name_of(self, path: Path) -> str:
        """The file's or folder's name as the model's, in the shape that names have."""
        text = re.sub(r"[^a-z0-9._-]+", "-", path.absolute().stem.lower()).strip("-.")
        try:
            return check_id(text, "model name")
        except UsageError:
            raise UsageError(f"{str(path)!r} gives no name for the model; write NAME={path}") from None
