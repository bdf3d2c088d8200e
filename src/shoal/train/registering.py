"""The end of a run as a version of a model: worker 0 gives its weights, the record its lineage.

Registering must never cost a run that ended well: whatever goes wrong here is a warning in the record.
"""

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from torch import Tensor, nn

from shoal.core.clock import now
from shoal.core.durable import write_file
from shoal.core.errors import ShoalError, UsageError
from shoal.core.ids import check_id

if TYPE_CHECKING:
    from shoal.models.version import ModelVersion

REGISTER_VARIABLE = "SHOAL_REGISTER"
"""0: no run is registered."""
MODEL_FILE = "model.json"
"""In the run's folder: under which name and number it was registered, and where."""


class RunFacts(msgspec.Struct, frozen=True):
    """What a version is made of, at this moment."""

    models: Sequence[nn.Module]
    directory: Path
    step: int
    epoch: int
    metrics: dict[str, float]
    loader: Any = None
    """The first joined loader, whose data is fingerprinted."""


class Registration:
    """Under which name a run is registered, and with what."""

    def __init__(self) -> None:
        given = os.environ.get(REGISTER_VARIABLE, "1")
        if given not in ("0", "1"):
            raise UsageError(f"{REGISTER_VARIABLE}={given!r} is neither 0 nor 1")
        self.is_on = given == "1"
        self._folder = os.getcwd()  # the script may change it; the registry is where the run was started
        self._name = ""
        self._example: Any = None
        self._note = ""
        self._done: tuple[str, int] = ("", -1)
        self._data = ""
        self.notes: list[str] = []
        """What was left out, for the record."""

    def choose(self, name: str, example: Any = None, note: str = "") -> None:
        """What the script asks for, instead of its own name."""
        self._name, self._note = check_id(name, "model name"), note
        self._example = self._example if example is None else example

    def finish(self, facts: RunFacts) -> str:
        """Register a run that ended well, unless it made no step; returns what went wrong, or nothing."""
        if not self.is_on or not facts.models or not (facts.step or self._name):
            return ""
        try:
            # run.register(now=True) may have stored this very state
            if self._done[1] != facts.step:
                self.store(facts)
        except (ShoalError, OSError) as error:
            return f"this run was not registered: {error}"
        return "; ".join(self.notes)

    def store(self, facts: RunFacts) -> "ModelVersion":
        """Add the weights as they are now to the registry."""
        # only a run that is registered pays for these imports
        from shoal.models.fingerprint import fingerprint_data
        from shoal.models.lineage import read_lineage, script_name
        from shoal.models.loading import parent_digest
        from shoal.models.registry import Registry
        from shoal.models.registry_places import models_root

        began = now()
        name = self._name or script_name(sys.argv[0])
        data = getattr(facts.loader, "dataset", facts.loader)
        self._data = self._data or ("" if data is None else fingerprint_data(data))
        lineage = read_lineage(
            facts.directory, step=facts.step, epoch=facts.epoch, data=self._data, parent=parent_digest()
        )
        registry = Registry(Path(self._folder) / models_root())
        weights, files = weights_of(facts.models), self._files(facts)
        version = registry.add(name, weights, files=files, lineage=lineage, metrics=facts.metrics, note=self._note)
        self._done = (name, facts.step)
        told = {"model": version.ref, "digest": version.digest, "registry": str(registry.root)}
        write_file(facts.directory / MODEL_FILE, msgspec.json.encode(told | {"seconds": now() - began}))
        return version

    def _files(self, facts: RunFacts) -> dict[str, bytes]:
        """Samples and a program, if the script gave an example."""
        if self._example is None:
            return {}
        from shoal.models.program import PROGRAM, SAMPLES, pack_samples, take_samples, trace_onnx

        if len(facts.models) != 1:
            raise UsageError(f"example= is for runs with one model; {len(facts.models)} are joined")
        module = getattr(facts.models[0], "_orig_mod", facts.models[0])
        samples = take_samples(module, self._example)
        files = {SAMPLES: pack_samples(samples)}
        try:
            files[PROGRAM] = trace_onnx(module, samples[0])
        except UsageError as error:  # the weights and samples are worth keeping all the same
            self.notes.append(f"the version has no program: {error}")
        return files


def weights_of(models: Sequence[nn.Module]) -> dict[str, Tensor]:
    """Names as in `state_dict` of the module itself, compiled or not; several models have their numbers in front."""
    # torch.compile keeps the module itself there
    plain = [getattr(model, "_orig_mod", model) for model in models]
    prefixes = [f"{number}." if len(plain) > 1 else "" for number in range(len(plain))]
    states = [model.state_dict(prefix=prefix) for model, prefix in zip(plain, prefixes, strict=True)]
    return {name: tensor.detach() for state in states for name, tensor in state.items() if isinstance(tensor, Tensor)}
