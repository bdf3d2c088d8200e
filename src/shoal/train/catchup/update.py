"""What catch-up sends: the tensors that only updates change, and each optimizer update as bytes, exactly.

A gradient is written in the shortest of three ways, and read to the same bits:

    places, values    where it is mostly zero: sparsifiers
    tables, codes     where every block has few distinct numbers, as sums of signs have: 1, 2 or 4 bits an element
    all               any other
"""

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor
from torch.optim import Optimizer

from shoal.core.errors import PayloadError, ShoalError
from shoal.train.checkpoint.shard import pieces
from shoal.train.checkpoint.snapshot import pack, unpack
from shoal.train.fingerprint import fingerprint_of
from shoal.train.joined import JoinedModels
from shoal.train.state import patch

UPDATE = "update."
"""Before the number of an update, in what the donor hands to a newcomer that has had a stream."""
SMALL = 1024
"""Elements of a tensor that is told anew anyway."""
FEW = 8
"""A gradient of which less than one in so many bytes is not zero is not searched for few distinct numbers."""
BLOCK, MOST_VALUES, AT_ONCE = 2048, 16, 64
"""Elements that share a table, as many as share two means under `onebit`; numbers in a table; blocks in the cache."""


def bulk(joined: Sequence[JoinedModels]) -> dict[str, Tensor]:
    """The tensors themselves, not copies, by the names that `snapshot.common` has for them."""
    tensors: dict[str, Tensor] = {}
    for number, one in enumerate(joined):
        named = zip(one.members.names, one.members.parameters, strict=True)
        tensors |= {f"{number}.parameter.{name}": parameter.detach() for name, parameter in named}
        # a snapshot has schedulers after them, so that numbers are the same; to find those takes long
        pack([optimizer.state_dict() for optimizer in one.members.optimizers], tensors, f"{number}.state")
    return {name: tensor for name, tensor in tensors.items() if tensor.numel() >= SMALL}


def proof(tensors: Mapping[str, Tensor]) -> str:
    """Equal for those who hold the same bits under the same names."""
    return f"{len(tensors)} {fingerprint_of(tensors[name] for name in sorted(tensors)):016x}"


_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class UnfitError(ShoalError):
    """An update that cannot be written down."""


def write(optimizer: Optimizer, number: int) -> bytes:
    """The update that `optimizer`, number `number` of its join, is about to make."""
    tensors: dict[str, Tensor] = {}
    options = [{key: value for key, value in group.items() if key != "params"} for group in optimizer.param_groups]
    texts = {"kind": "update", "optimizer": str(number), "options": pack(options, tensors, "option")}
    for index, parameter in enumerate(_parameters(optimizer)):
        if parameter.grad is not None:
            tensors |= {f"{index}.{kind}": part for kind, part in _parts(parameter.grad.detach()).items()}
    return b"".join(pieces(tensors, texts))


def _parts(gradient: Tensor) -> dict[str, Tensor]:
    if gradient.layout != torch.strided:
        raise UnfitError(f"a gradient of layout {gradient.layout}")
    flat = gradient.reshape(-1).contiguous().cpu()
    size, bits = flat.element_size(), flat.view(_BITS[flat.element_size()])
    # places are written as int32
    if flat.numel() >= 1 << 31:
        return {"all": flat}
    places = bits.nonzero().view(-1)
    if len(places) * (4 + size) * FEW <= flat.numel() * size:
        return {"places": places.int(), "values": flat[places]}
    if (coded := _code(bits)) is not None:
        return coded
    if len(places) * (4 + size) >= flat.numel() * size:
        return {"all": flat}
    return {"places": places.int(), "values": flat[places]}


def _code(bits: Tensor) -> dict[str, Tensor] | None:
    """Number the distinct bit patterns of each block; None where one has too many, which the first mostly show."""
    if bits.element_size() == 1:
        return None
    # filled up with the last element, which adds no distinct number
    rows = torch.cat([bits, bits[-1:].expand(-len(bits) % BLOCK)]).view(-1, BLOCK)
    tables: list[Tensor] = []
    codes = torch.zeros_like(rows, dtype=torch.uint8)
    for some, numbers in zip(torch.split(rows, AT_ONCE), torch.split(codes, AT_ONCE), strict=True):
        if (table := _number(some, numbers)) is None:
            return None
        tables.append(table)
    width = max(table.shape[1] for table in tables)
    # narrower tables are filled up; no code names those places
    even = [torch.cat([table, table[:, :1].expand(-1, width - table.shape[1])], 1) for table in tables]
    return {"tables": torch.cat(even), "codes": _pack_codes(codes.view(-1)[: len(bits)], width)}


def _number(rows: Tensor, codes: Tensor) -> Tensor | None:
    """Return a table for each row; write the place of each element in its row's.

    One pass over all rows for each number is quicker than to sort them.
    """
    left, tables = torch.ones_like(rows, dtype=torch.bool), []
    for number in range(MOST_VALUES):
        value = rows.gather(1, left.to(torch.uint8).argmax(1, keepdim=True))
        tables.append(value)
        same = (rows == value).logical_and_(left)
        codes.add_(same, alpha=number)
        left ^= same
        if not bool(left.any()):
            return torch.cat(tables, 1)
    return None


def _width(values: int) -> int:
    """Return the bits of a code for one of so many values."""
    return next(width for width in (1, 2, 4) if values <= 1 << width)


def _pack_codes(codes: Tensor, values: int) -> Tensor:
    width = _width(values)
    rows = torch.nn.functional.pad(codes, (0, -len(codes) % (8 // width))).view(-1, 8 // width)
    packed = rows[:, 0].clone()
    for place in range(1, rows.shape[1]):
        packed |= rows[:, place] << (place * width)
    return packed


def _decode(tables: Tensor, packed: Tensor, numel: int) -> Tensor:
    """Undo `_code`; PayloadError for what it cannot have written."""
    values = tables.shape[1] if tables.dim() == 2 else 0
    if not 0 < values <= MOST_VALUES or len(tables) != -(-numel // BLOCK):
        raise PayloadError(f"tables of shape {list(tables.shape)} for an update of {numel} elements")
    width = _width(values)
    if packed.dtype != torch.uint8 or packed.numel() != -(-numel * width // 8):
        raise PayloadError(f"{packed.numel()} bytes of codes for {numel} elements of {values} values")
    shifts = torch.arange(0, 8, width, dtype=torch.uint8)
    codes = ((packed.view(-1, 1) >> shifts) & ((1 << width) - 1)).view(-1)[:numel]
    # `gather` below must not read outside the table
    if int(codes.max()) >= values:
        raise PayloadError(f"code {int(codes.max())} in an update of {values} values")
    rows = torch.nn.functional.pad(codes, (0, -numel % BLOCK)).view(-1, BLOCK)
    return tables.gather(1, rows.long()).view(-1)[:numel]


def repeat(optimizers: list[Optimizer], tensors: Mapping[str, Tensor], texts: Mapping[str, str]) -> None:
    """Make the update that was written; gradients are gone afterwards."""
    optimizer = optimizers[int(texts["optimizer"])]
    options = unpack(texts["options"], tensors, "option")
    for group, told in zip(optimizer.param_groups, options, strict=True):
        group.update(patch(told, {key: group.get(key) for key in told}))
    for index, parameter in enumerate(_parameters(optimizer)):
        parameter.grad = _gradient(parameter, index, tensors)
    optimizer.step()
    for parameter in _parameters(optimizer):
        parameter.grad = None


def _gradient(parameter: Tensor, index: int, tensors: Mapping[str, Tensor]) -> Tensor | None:
    if f"{index}.all" in tensors:
        flat = tensors[f"{index}.all"].to(parameter.device)
    elif f"{index}.values" in tensors:
        flat = torch.zeros(parameter.numel(), dtype=parameter.dtype, device=parameter.device)
        flat[tensors[f"{index}.places"].long()] = tensors[f"{index}.values"].to(parameter.device)
    elif f"{index}.tables" in tensors:
        bits = _decode(tensors[f"{index}.tables"], tensors[f"{index}.codes"], parameter.numel())
        flat = bits.view(parameter.dtype).to(parameter.device)
    else:
        return None
    return flat.view(parameter.shape)


def _parameters(optimizer: Optimizer) -> Iterable[Tensor]:
    return (parameter for group in optimizer.param_groups for parameter in group["params"])
