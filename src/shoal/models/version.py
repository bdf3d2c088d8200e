"""What a version is: a manifest (what it consists of, where it comes from) and its row in the index.

The manifest is a blob itself and its SHA-256 is the version's `digest`: it binds weights, files, lineage and metrics,
and is the same in every registry. Name, number and aliases belong to one registry and stand in its index alone.
"""

import hashlib

import msgspec

from shoal.core.errors import UsageError
from shoal.core.ids import check_id
from shoal.models.errors import RegistryError

FORMAT = 1
LARGEST_MANIFEST = 64 << 20
"""Bytes: more is refused before it is decoded."""


class TensorEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One tensor and the chunks that hold it."""

    name: str
    dtype: str
    shape: list[int]
    chunks: list[str]
    key: str
    """Its name inside a chunk."""


class FileEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Something else stored with the model: a program, samples."""

    name: str
    size: int
    chunks: list[str]


class PlanUse(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """From this step on the run trained by this plan."""

    step: int
    plan: str


class Lineage(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where a version comes from. Empty fields are unknown."""

    run: str = ""
    plan: str = ""
    plans: list[PlanUse] = []
    """The plan history: one entry for each attempt of the run."""
    step: int = 0
    epoch: int = 0
    samples: int = 0
    """Samples trained on, over all workers."""
    seed: int = 0
    workers: int = 0
    script: str = ""
    code: str = ""
    """SHA-256 of the script's text."""
    data: str = ""
    """Fingerprint of the data set of the first joined loader."""
    ledger: list[dict[str, int | bool]] = []
    """For each pass: epoch, loader, pass, samples, missing, duplicate, first and last step."""
    members: list[dict[str, str | int]] = []
    """Worker, host and device of everybody who took part."""
    parent: str = ""
    """Digest of the version that was loaded before training."""
    versions: dict[str, str] = {}
    """Of Shoal, Python and torch."""


class Manifest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a version consists of."""

    format: int = FORMAT
    created: float
    tensors: list[TensorEntry]
    files: list[FileEntry] = []
    lineage: Lineage = Lineage()
    metrics: dict[str, float | None] = {}
    note: str = ""
    sizes: dict[str, int]
    """Bytes of every chunk."""

    @property
    def weights(self) -> str:
        """The same for the same tensors, wherever they come from and in whatever order."""
        return hashlib.sha256(msgspec.json.encode(sorted(self.tensors, key=lambda entry: entry.name))).hexdigest()

    @property
    def total_bytes(self) -> int:
        """Size without deduplication: what a copy of the version takes."""
        lists = [entry.chunks for entry in self.files] + [[one] for one in self._tensor_chunks()]
        return sum(self.sizes[digest] for chunks in lists for digest in chunks)

    def _tensor_chunks(self) -> list[str]:
        """Each group of small tensors once; a chunk that two large tensors share, twice."""
        grouped = dict.fromkeys(digest for entry in self.tensors if entry.key != OWN_CHUNK for digest in entry.chunks)
        return [*grouped, *(digest for entry in self.tensors if entry.key == OWN_CHUNK for digest in entry.chunks)]

    @property
    def parameters(self) -> int:
        return sum(_product(entry.shape) for entry in self.tensors)

    @property
    def kind(self) -> str:
        """`weights`, or the program it consists of: `onnx`."""
        return "weights" if self.tensors else "onnx"

    def encode(self) -> bytes:
        return msgspec.json.encode(self)


OWN_CHUNK = "data"
"""Key of a tensor that has its chunks for itself."""


def _product(shape: list[int]) -> int:
    result = 1
    for length in shape:
        result *= length
    return result


def decode_manifest(data: bytes, digest: str) -> Manifest:
    """A manifest whose bytes were checked against its digest already."""
    if len(data) > LARGEST_MANIFEST:
        raise RegistryError(f"manifest {digest[:12]} has {len(data)} bytes; {LARGEST_MANIFEST} is the most")
    try:
        manifest = msgspec.json.decode(data, type=Manifest)
    except msgspec.DecodeError as error:
        raise RegistryError(f"manifest {digest[:12]} cannot be read: {error}") from None
    if manifest.format != FORMAT:
        raise RegistryError(f"manifest {digest[:12]} has format {manifest.format}; this Shoal reads {FORMAT}")
    lists = [entry.chunks for entry in manifest.tensors] + [entry.chunks for entry in manifest.files]
    used = {chunk for chunks in lists for chunk in chunks}
    # A manifest may come from another machine, and sizes bound what is read for each chunk.
    if used != set(manifest.sizes) or min(manifest.sizes.values(), default=0) < 0:
        raise RegistryError(f"manifest {digest[:12]} does not list the size of each of its chunks")
    return manifest


class ModelVersion(msgspec.Struct, frozen=True, kw_only=True):
    """One version as a registry knows it: what `list` and `get` return and `shoal models ls --json` prints."""

    name: str
    version: int
    digest: str
    weights: str
    created: float
    """Seconds since 1970."""
    kind: str
    bytes: int
    parameters: int
    run: str = ""
    plan: str = ""
    step: int = 0
    epoch: int = 0
    samples: int = 0
    seed: int = 0
    workers: int = 0
    script: str = ""
    code: str = ""
    data: str = ""
    parent: str = ""
    metrics: dict[str, float | None] = {}
    note: str = ""
    aliases: list[str] = []

    @property
    def ref(self) -> str:
        """How a command names it: `digits:3`."""
        return f"{self.name}:{self.version}"


class ModelRef(msgspec.Struct, frozen=True):
    """A reference as the user wrote it: `digits`, `digits:3` or `digits@prod`."""

    name: str
    version: int | None = None
    alias: str | None = None

    @classmethod
    def parse(cls, text: str) -> "ModelRef":
        name, colon, number = text.partition(":")
        if colon:
            if not (number.isascii() and number.isdecimal()) or len(number) > 9 or int(number) < 1:
                raise UsageError(
                    f"{text!r}: {number!r} is not a version number; write {name}:1, {name}@ALIAS or {name}"
                )
            return cls(check_id(name, "model name"), version=int(number))
        name, at, alias = text.partition("@")
        if at:
            return cls(check_id(name, "model name"), alias=check_id(alias, "alias"))
        return cls(check_id(name, "model name"))
