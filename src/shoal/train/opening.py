"""How a worker's part of the record begins: the run's folder, what the plan will not do here, and the first event.

Worker 0 makes the folder, unless a launcher has done so. Newcomers find one in which the others have long begun.
"""

import os
import platform
import sys
import time
from pathlib import Path

import torch

from shoal.core import record
from shoal.core.events import ModelsJoined, WarningRaised, WorkerStarted
from shoal.core.journal import EventJournal
from shoal.core.lock import hold
from shoal.groups.base import WorkerGroup
from shoal.groups.links import LinkedGroup
from shoal.launch.context import WorkerContext
from shoal.plan.plan import Plan
from shoal.plan.rules import check
from shoal.plan.terms import AllReduceTerm
from shoal.train.checkpoint.writer import clear
from shoal.train.layers import layer_of
from shoal.train.members import JoinedMembers
from shoal.train.plan_fitness import find_misfits
from shoal.transport.rate_limit import BANDWIDTH_VARIABLE


def make_folder(context: WorkerContext, plan: Plan) -> None:
    """A collective call, but for newcomers."""
    group = context.group
    main = group.rank == 0 and not group.remote
    if main and not context.begun:
        record.write_info(context.dir, _info(context, plan))
        hold(context.dir, context.run)
    if group.session.waiting:  # the others have begun long ago
        return
    if main:
        # a checkpoint's folder is named by its step; later ones were passed over as damaged
        clear(context.dir, int(context.resume.name.rpartition("-")[2]) if context.resume is not None else 0)
    # the others write only once the folder is there and cleared
    group.gather(b"")


def _info(context: WorkerContext, plan: Plan) -> record.RunInfo:
    return record.describe_run(
        run=context.run,
        plan=str(plan),
        workers=context.group.size,
        seed=context.seed,
        script=sys.argv[0],
        command=sys.argv,
        arguments=sys.argv[1:],
        folder=os.getcwd(),
        checkpoint=context.checkpoint,
        fingerprint=_fingerprint(),
    )


def _fingerprint() -> str:
    """Of the script, if it is a file."""
    try:
        return record.fingerprint_of(Path(sys.argv[0]))
    except OSError:
        return ""


def without_effect(plan: Plan, group: WorkerGroup) -> list[str]:
    """What was asked for and does nothing, with this group."""
    warnings = check(plan, group.size) if not group.session.waiting else []  # a newcomer does not know the size yet
    if group.size > 1 and not isinstance(group, LinkedGroup):
        for exchange in dict.fromkeys(each.exchange for each in plan.plans):
            if isinstance(exchange, AllReduceTerm) and exchange.algorithm != "auto":
                warnings.append(f"{exchange} is as allreduce here: it says how sums are made over links between hosts")
        if os.environ.get(BANDWIDTH_VARIABLE):
            warnings.append("--bandwidth has no effect here: it limits what workers send over links between hosts")
    return warnings


def announce(
    journal: EventJournal, group: WorkerGroup, device: torch.device, attempt: int, warnings: list[str]
) -> None:
    """The first events of this worker; worker 0 has the warnings."""
    started = WorkerStarted(
        at=time.time(),
        rank=group.slot,
        size=group.size,
        host=platform.node(),
        pid=os.getpid(),
        threads=torch.get_num_threads(),
        device=str(device),
        attempt=attempt,
    )
    journal.emit(started)
    for text in warnings if group.rank == 0 else ():
        journal.emit(WarningRaised(at=time.time(), text=text))
    journal.flush()


def describe_join(number: int, members: JoinedMembers) -> ModelsJoined:
    """What a call of `run.join` leaves in the record."""
    return ModelsJoined(
        at=time.time(),
        join=number,
        models=[type(model).__name__ for model in members.models],
        optimizers=[type(optimizer).__name__ for optimizer in members.optimizers],
        parameters=sum(parameter.numel() for parameter in members.parameters),
        loss=members.loss,
        layers=describe_layers(members),
        shapes={name: list(p.shape) for name, p in zip(members.names, members.parameters, strict=True)}
        | {name: [table.num_embeddings, table.embedding_dim] for name, table in members.tables.items()},
        misfits=find_misfits(members),
    )


def default_device(rank: int) -> torch.device:
    """The device of a worker: one of the host's CUDA devices in turn, or the CPU."""
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    # ranks count over all hosts, and torchrun gives the number within one host
    return torch.device("cuda", int(os.environ.get("LOCAL_RANK", rank)) % count) if count else torch.device("cpu")


def describe_layers(members: JoinedMembers) -> dict[str, tuple[str, int]]:
    """Class and size of every module that owns parameters."""
    several = len(members.models) > 1
    kinds = {
        f"{number}.{name}" if several else name: type(module).__name__
        for number, model in enumerate(members.models)
        for name, module in model.named_modules()
    }
    found: dict[str, tuple[str, int]] = {}
    for name, parameter in zip(members.names, members.parameters, strict=True):
        layer = layer_of(name)
        found[layer] = (kinds.get(layer, ""), found.get(layer, ("", 0))[1] + parameter.numel())
    return found
