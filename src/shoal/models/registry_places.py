"""Where a registry is: its folder, and the places behind a URL where its blobs and its index may be instead.

models/blobs.json   if its blobs are in an object store: where, and under which owner
models/index.json   if its index is in PostgreSQL: where
"""

import os
from pathlib import Path
from urllib.parse import unquote, urlsplit

import msgspec

from shoal.core.disk import FileOperations
from shoal.core.durable import write_file
from shoal.core.errors import UsageError
from shoal.models.blobs import BlobFolder
from shoal.models.errors import RegistryError
from shoal.models.index import VersionIndex

MODELS_VARIABLE = "SHOAL_MODELS"
SETTINGS = "blobs.json"
"""In the registry's folder, if its blobs are elsewhere: where."""
INDEX_SETTINGS = "index.json"
"""In the registry's folder, if its index is elsewhere: where."""


def models_root(url: str | os.PathLike[str] | None = None) -> Path:
    """The folder of the registry: what was given (a path or file:// URL), else $SHOAL_MODELS, else ./models."""
    text = os.fspath(url or os.environ.get(MODELS_VARIABLE) or "models")
    # A path may hold anything, also what looks like a part of a URL.
    if "://" not in text:
        return Path(text)
    parts = urlsplit(text)
    if parts.scheme != "file" or parts.netloc not in ("", "localhost"):
        raise UsageError(f"{text!r} is not a folder; a registry is a path or a file:// URL")
    return Path(unquote(parts.path))


def open_blobs(root: Path, disk: FileOperations) -> BlobFolder:
    """The folder `blobs`, or the place behind a URL that `blobs.json` names."""
    try:
        text = (root / SETTINGS).read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return BlobFolder(root / "blobs", disk)
    from shoal.models.remote_blobs import BlobOwner, RemoteBlobs

    try:
        return RemoteBlobs(msgspec.json.decode(text, type=BlobOwner), root / "blobs")
    except msgspec.DecodeError as error:
        raise RegistryError(f"{root / SETTINGS} cannot be read: {error}; it says where the blobs are") from None


def open_index(root: Path) -> VersionIndex:
    """The file `index.sqlite`, or the database that `index.json` names."""
    path = root / "index.sqlite"
    try:
        text = (root / INDEX_SETTINGS).read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return VersionIndex(path)
    from shoal.models.postgres_index import IndexPlace, PostgresIndex

    try:
        return PostgresIndex(path, msgspec.json.decode(text, type=IndexPlace))
    except msgspec.DecodeError as error:
        raise RegistryError(f"{root / INDEX_SETTINGS} cannot be read: {error}; it says where the index is") from None


def write_places(root: Path, blobs: str | None, index: str | None) -> None:
    """Claim places for the blobs and the index of a registry in `root`, and write down where they are.

    Written before the first version is added, so that none can go to another place.
    """
    settings: dict[str, bytes] = {}
    if index is not None:
        from shoal.models.postgres_index import PostgresIndex, parse_place

        place = parse_place(index)
        # Made first: a database that cannot be reached must leave no settings that name it.
        PostgresIndex(root / "index.sqlite", place).create()
        settings[INDEX_SETTINGS] = msgspec.json.encode(place)
    if blobs is not None:
        from shoal.models.remote_blobs import claim

        if "://" not in blobs:
            raise UsageError(f"--blobs {blobs!r} is no URL; without --blobs they are kept in the registry's own folder")
        settings[SETTINGS] = msgspec.json.encode(claim(blobs))
    root.mkdir(parents=True, exist_ok=True)
    for name, text in settings.items():
        write_file(root / name, text)
