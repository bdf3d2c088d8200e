"""The model that a run became: its version in the registry, and its weights for users without a shell here.

GET /api/runs/ID           `registered`: model, digest and registry
GET /api/runs/ID/weights   the weights, every byte checked, as one safetensors file
"""

import asyncio
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import msgspec
from starlette.background import BackgroundTask
from starlette.exceptions import HTTPException
from starlette.responses import FileResponse

from shoal.core.errors import UsageError
from shoal.models.errors import RegistryError
from shoal.models.registry import Registry

MODEL_FILE = "model.json"
"""What worker 0 writes once the run is registered; its own module would import torch."""
EXPORTING = 600.0
"""Seconds in which the weights must have been read."""


class RegisteredModel(msgspec.Struct, frozen=True):
    """What a run says of its version."""

    model: str
    digest: str
    registry: str


def read_registered(directory: Path) -> RegisteredModel | None:
    """None: the run is not registered, or not yet."""
    try:
        return msgspec.json.decode((directory / MODEL_FILE).read_bytes(), type=RegisteredModel)
    except (OSError, msgspec.MsgspecError):
        return None


async def send_weights(directory: Path) -> FileResponse:
    """Of the very version that the run became, even where its registry has newer ones."""
    found = read_registered(directory)
    if found is None:
        raise HTTPException(404, f"run {directory.name!r} is not registered; it is when it has ended well")
    if not is_there(found):
        raise HTTPException(404, f"{found.model} is not in {found.registry} any more")
    scratch = tempfile.TemporaryDirectory(prefix="shoal-weights-")
    path = Path(scratch.name) / f"{found.model.replace(':', '-')}.safetensors"
    try:
        await asyncio.to_thread(export, found, path)
    except BaseException:
        scratch.cleanup()
        raise
    # The folder goes once the file has been sent.
    return FileResponse(
        path, media_type="application/octet-stream", filename=path.name, background=BackgroundTask(scratch.cleanup)
    )


def is_there(found: RegisteredModel) -> bool:
    try:
        version = Registry(found.registry).find(found.model)
    except (RegistryError, UsageError):
        return False
    return version is not None and version.digest == found.digest


def export(found: RegisteredModel, path: Path) -> None:
    """In a process of its own: reading weights takes torch, which the page does without."""
    words = ["models", "export", found.model, str(path), "--models", found.registry]
    done = subprocess.run(
        [sys.executable, "-m", "shoal", *words], capture_output=True, text=True, timeout=EXPORTING, check=False
    )
    if done.returncode:
        raise HTTPException(500, (done.stderr.strip().splitlines() or ["the weights cannot be read"])[-1])


def describe(directory: Path) -> dict[str, Any] | None:
    found = read_registered(directory)
    return msgspec.structs.asdict(found) if found is not None else None
