"""Versions in MLflow's model registry: `shoal models push digits:2 --to mlflow=URI`, `pull digits:3 --from mlflow=URI`.

A version there is an MLflow run with metrics and parameters, and a folder of files:

    model/weights.safetensors   model/model.onnx and other files   model/shoal.json: the manifest, with the lineage

A version that Shoal pushed comes back with the digest it had. Of others a .safetensors or .onnx file is read; flavours
that are pickles are refused, because they may run code.
"""

import hashlib
import os
import tempfile
from math import isfinite
from pathlib import Path
from typing import Any

from shoal.core.errors import UsageError
from shoal.core.ids import check_id
from shoal.models.errors import RegistryError
from shoal.models.importing import import_file
from shoal.models.registry import FILE_CHUNK, Registry
from shoal.models.version import Manifest, ModelRef, ModelVersion, decode_manifest

EXPERIMENT = "shoal-models"
FOLDER = "model"
WEIGHTS, MANIFEST = "weights.safetensors", "shoal.json"
LARGEST = 4 << 30
"""Bytes of a file that is read from there."""


def is_mlflow(place: str) -> bool:
    """Whether `--to` or `--from` means MLflow: `mlflow` or `mlflow=URI`."""
    return place == "mlflow" or place.startswith("mlflow=")


def push_version(registry: Registry, version: ModelVersion, place: str) -> str:
    """Register a version in MLflow, too; returns what it is there, in words."""
    client, uri = _open(place)
    with tempfile.TemporaryDirectory() as folder:
        _write_files(registry, version, Path(folder))
        run = _create_run(client, uri, version)
        client.log_artifacts(run.info.run_id, folder, FOLDER)
        client.set_terminated(run.info.run_id, "FINISHED")
    if not any(model.name == version.name for model in client.search_registered_models(f"name = '{version.name}'")):
        client.create_registered_model(version.name)
    tags = {"shoal.digest": version.digest, "shoal.ref": version.ref}
    source = f"{run.info.artifact_uri}/{FOLDER}"
    made = client.create_model_version(version.name, source, run.info.run_id, tags=tags, description=version.note)
    for alias in version.aliases:
        client.set_registered_model_alias(version.name, alias, made.version)
    return f"{version.ref} is {version.name}:{made.version} in MLflow: {uri}"


def pull_version(registry: Registry, ref: str, place: str) -> ModelVersion:
    """Add a version of MLflow's registry: `digits`, `digits:3` or `digits@prod`."""
    client, uri = _open(place)
    found = _find(client, ModelRef.parse(ref), uri)
    with tempfile.TemporaryDirectory() as folder:
        from mlflow.artifacts import download_artifacts

        try:
            path = Path(download_artifacts(artifact_uri=found.source, dst_path=folder, tracking_uri=uri))
        except Exception as error:  # noqa: BLE001  (every artifact store has exceptions of its own)
            raise RegistryError(f"{uri} does not give {found.source}: {error}") from None
        return _add_files(registry, found.name, path, f"{found.name}:{found.version} of MLflow at {uri}")


def _open(place: str) -> tuple[Any, str]:
    try:
        from mlflow.tracking import MlflowClient  # not at the top: importing it changes warnings and logging
    except ImportError:
        raise UsageError("this needs MLflow, which is not installed: pip install 'shoal[mlflow]'") from None

    default = os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{Path('runs').absolute()}/mlflow.db"
    uri = place.removeprefix("mlflow").removeprefix("=") or default
    if uri.startswith("sqlite:///"):
        Path(uri.removeprefix("sqlite:///")).parent.mkdir(parents=True, exist_ok=True)
    return MlflowClient(tracking_uri=uri, registry_uri=uri), uri


def _create_run(client: Any, uri: str, version: ModelVersion) -> Any:
    found = client.get_experiment_by_name(EXPERIMENT)
    if found is not None:
        experiment = found.experiment_id
    else:
        # a database alone has no place for files: they go beside it, and not where the command happens to be given
        beside = Path(uri.removeprefix("sqlite:///")).absolute().parent / "mlflow-artifacts"
        location = beside.as_uri() if uri.startswith("sqlite:///") else None
        experiment = client.create_experiment(EXPERIMENT, artifact_location=location)
    run = client.create_run(experiment, run_name=version.ref, tags={"shoal.digest": version.digest})
    for name in ("run", "plan", "step", "epoch", "samples", "seed", "workers", "script", "code", "data", "parent"):
        # Cut, because MLflow limits the length of a parameter.
        client.log_param(run.info.run_id, name, str(getattr(version, name))[:500])
    for name, value in version.metrics.items():
        if value is not None and isfinite(value):
            client.log_metric(run.info.run_id, name, value)
    return run


def _write_files(registry: Registry, version: ModelVersion, folder: Path) -> None:
    from safetensors.torch import save_file

    manifest = registry.manifest(version)
    tensors = registry.tensors(version)
    if tensors:
        save_file({name: tensor.contiguous().clone() for name, tensor in tensors.items()}, folder / WEIGHTS)
    for entry in manifest.files:
        (folder / check_id(entry.name, "file name")).write_bytes(registry.file(version, entry.name))
    (folder / MANIFEST).write_bytes(manifest.encode())


def _find(client: Any, ref: ModelRef, uri: str) -> Any:
    from mlflow.exceptions import MlflowException

    try:
        if ref.alias is not None:
            return client.get_model_version_by_alias(ref.name, ref.alias)
        if ref.version is not None:
            return client.get_model_version(ref.name, str(ref.version))
        versions = client.search_model_versions(f"name = '{ref.name}'")
    except MlflowException as error:
        raise UsageError(f"MLflow at {uri} says: {str(error).splitlines()[0]}") from None
    if not versions:
        raise UsageError(f"no model {ref.name!r} in MLflow at {uri}")
    return max(versions, key=lambda version: int(version.version))


def _add_files(registry: Registry, name: str, folder: Path, note: str) -> ModelVersion:
    # No links: what was downloaded must not name files of this machine.
    files = [path for path in sorted(folder.rglob("*")) if path.is_file() and not path.is_symlink()]
    large = next((path for path in files if path.stat().st_size > LARGEST), None)
    if large is not None:
        raise UsageError(f"{large.name} has {large.stat().st_size} bytes; {LARGEST} is the most")
    if (folder / MANIFEST).is_file():
        return _adopt(registry, name, folder)
    for suffix in (".safetensors", ".onnx"):
        for path in files:
            if path.suffix == suffix:
                return import_file(registry, path, name, note)
    names = ", ".join(path.name for path in files[:5]) or "nothing"
    raise UsageError(f"{note} has no .safetensors or .onnx file but {names}; what may hold code is not read")


def _adopt(registry: Registry, name: str, folder: Path) -> ModelVersion:
    """A version that Shoal pushed: the same chunks again, and so the same digest."""
    data = (folder / MANIFEST).read_bytes()
    digest = hashlib.sha256(data).hexdigest()
    blobs = _chunks(decode_manifest(data, digest), folder) | {digest: data}

    def read(wanted: str) -> bytes:
        if wanted not in blobs:
            raise RegistryError(f"the files of {name!r} in MLflow are not those of its {MANIFEST}; nothing was added")
        return blobs[wanted]

    return registry.adopt(name, digest, read)


def _chunks(manifest: Manifest, folder: Path) -> dict[str, bytes]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    from shoal.models.chunks import pack

    blobs: dict[str, bytes] = {}

    def put(pieces: Any) -> str:
        content = b"".join(pieces)
        digest = hashlib.sha256(content).hexdigest()
        blobs[digest] = content
        return digest

    if manifest.tensors:
        try:
            # Packed as Shoal packs, so that the chunks have the digests that the manifest names.
            pack(load_file(folder / WEIGHTS), put)
        except (OSError, SafetensorError) as error:
            raise RegistryError(f"{WEIGHTS} in MLflow cannot be read: {error}") from None
    for entry in manifest.files:
        path = folder / check_id(entry.name, "file name")  # these words may be another's
        content = path.read_bytes() if path.is_file() else b""
        for at in range(0, len(content), FILE_CHUNK):
            put([content[at : at + FILE_CHUNK]])
    return blobs
