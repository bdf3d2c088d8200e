"""Names and shapes of a model's parameters: from a safetensors file, or from the record of a run that joined it."""

from pathlib import Path

from shoal.core.errors import UsageError
from shoal.core.events import ModelsJoined
from shoal.core.suggest import shown
from shoal.watch.record import RunRecord, resolve

STATISTICS = ("running_mean", "running_var", "num_batches_tracked")
"""What BatchNorm keeps beside its parameters, in files as `run.save` writes them."""
SUFFIX = ".safetensors"


def read_shapes(model: str, runs: Path) -> dict[str, list[int]]:
    """Return the shapes of the file or run that `model` names."""
    found = _of_file(Path(model)) if model.endswith(SUFFIX) else joined_shapes(RunRecord.open(resolve(runs, model)))
    if not found:
        raise UsageError(
            f"{shown(model)} holds no parameters; give a file that run.save wrote, or a run that joined one"
        )
    return found


def joined_shapes(record: RunRecord) -> dict[str, list[int]]:
    """Return the shapes of all that a run's workers joined; empty before they have, and in records of old versions."""
    # The first that has joined anything: all workers run the same script.
    for rank in record.ranks:
        found: dict[str, list[int]] = {}
        for event in record.events(rank):
            if isinstance(event, ModelsJoined):
                found |= event.shapes
        if found:
            return found
    return {}


def _of_file(path: Path) -> dict[str, list[int]]:
    from safetensors import SafetensorError, safe_open  # brings numpy along, which other commands do not need

    try:
        with safe_open(path, framework="numpy") as file:
            kept = [name for name in file.keys() if name.rpartition(".")[2] not in STATISTICS]  # noqa: SIM118
            # Slices read the header alone; the weights stay on the disk.
            return {name: list(file.get_slice(name).get_shape()) for name in kept}
    except (OSError, SafetensorError) as error:
        raise UsageError(f"{str(path)!r} cannot be read as a safetensors file: {error}") from None
