"""`POST /predict` for people and curl: nested lists in, nested lists out, no types and no shapes to write.

[5.1, 3.5, 1.4, 0.2]                      one sample of a model with one input
[[5.1, 3.5, 1.4, 0.2], [6.2, …]]          several
{"inputs": …}                             the same
{"inputs": {"image": …, "text": …}}       a model with several inputs
"""

from collections.abc import Sequence
from typing import Annotated

import msgspec

from shoal.serve.errors import BodyTooLarge, ModelMissing, RequestError
from shoal.serve.json_tensors import decode_array, guess_array, json_values
from shoal.serve.protocol import MOST_ELEMENTS, MOST_JSON
from shoal.serve.tensors import Tensors, TensorSpec


class _PlainBody(msgspec.Struct):
    inputs: msgspec.Raw


class FeedbackBody(msgspec.Struct, forbid_unknown_fields=True):
    """How good an answer was: of a request by its id, or of a version."""

    reward: Annotated[float, msgspec.Meta(ge=0.0, le=1.0)]
    id: str = ""
    version: int | None = None


_FEEDBACK = msgspec.json.Decoder(FeedbackBody)
_OBJECT = msgspec.json.Decoder(_PlainBody)
_NAMED = msgspec.json.Decoder(dict[str, msgspec.Raw])


def decode_plain(body: bytes, specs: Sequence[TensorSpec]) -> tuple[Tensors, bool]:
    """The inputs, and whether they were one sample without a batch around it."""
    if len(body) > MOST_JSON:
        raise BodyTooLarge(f"{len(body)} bytes of JSON; {MOST_JSON} is the most; use /v2 with binary tensors")
    try:
        text = bytes(_OBJECT.decode(body).inputs) if _is_object(body) else body
        named = _NAMED.decode(text) if _is_object(text) else {_only(specs): msgspec.Raw(text)}
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        said = str(error)[:160] or "it is nested too deep"
        raise RequestError(f'the body is not {{"inputs": [[1.0, 2.0]]}} or such a list alone: {said}') from None
    return _tensors(named, specs)


def decode_feedback(body: bytes) -> FeedbackBody:
    try:
        told = _FEEDBACK.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RequestError(f'the body is not {{"id": "seven", "reward": 1.0}}: {str(error)[:160]}') from None
    if bool(told.id) == (told.version is not None):
        raise RequestError("feedback is about the id of a request or about a version; give one of them")
    return told


def _is_object(text: bytes) -> bool:
    return text[:64].lstrip()[:1] == b"{"


def _only(specs: Sequence[TensorSpec]) -> str:
    if len(specs) > 1:
        names = ", ".join(spec.name for spec in specs)
        raise RequestError(f'the model has several inputs ({names}); write {{"inputs": {{"{specs[0].name}": …}}}}')
    return specs[0].name if specs else "input"


def _tensors(named: dict[str, msgspec.Raw], specs: Sequence[TensorSpec]) -> tuple[Tensors, bool]:
    known = {spec.name: spec for spec in specs}
    tensors, alone = {}, []
    for name, data in named.items():
        spec, text = known.get(name), memoryview(data)
        array = guess_array(name[:80], text) if spec is None else decode_array(name[:80], text, spec.datatype)
        if array.size > MOST_ELEMENTS:
            raise BodyTooLarge(f"input {name[:80]!r} has {array.size} elements; {MOST_ELEMENTS} is the most")
        # One dimension less than declared: a sample without its batch.
        single = spec is not None and spec.is_batched and array.ndim == len(spec.shape) - 1
        tensors[name] = array[None] if single else array
        alone.append(single)
    return tensors, bool(alone) and all(alone)


def encode_plain(name: str, number: int, outputs: Tensors, alone: bool) -> bytes:
    """`outputs` is a list where the model has one output, else an object of them."""
    told = {}
    for key, each in outputs.items():
        values = json_values(each)
        told[key] = values[0] if alone and each.ndim and len(each) == 1 else values
    result = next(iter(told.values())) if len(told) == 1 else told
    return msgspec.json.encode({"model": name, "version": number, "outputs": result})


def example(specs: Sequence[TensorSpec]) -> bytes:
    """A request that the model answers: one sample of zeros. ModelMissing: the model does not say what it takes."""
    if not specs:
        raise ModelMissing("this model declares no inputs, so there is no example; send what its predict() takes")
    values = {spec.name: json_values(spec.example()) for spec in specs}
    return msgspec.json.encode({"inputs": next(iter(values.values())) if len(values) == 1 else values})
