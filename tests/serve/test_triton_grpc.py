"""Conformance: NVIDIA's own client speaks to the server over gRPC, and its field numbers are ours."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from served import EchoModel, MemorySource, Scaled, core_of, listening
from test_triton_http import values

from shoal.core.http_access import reserve
from shoal.serve.grpc_messages import LAYOUT, METHODS, SERVICE, message_classes
from shoal.serve.server import ServerOptions
from shoal.serve.tensors import DATATYPES

triton = pytest.importorskip("tritonclient.grpc")
TOKEN = "a-token-of-some-length"
SHOWN = {"authorization": f"Bearer {TOKEN}"}


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    models = MemorySource("echo", {1: EchoModel}), MemorySource("m", {1: lambda: Scaled(2.0), 2: lambda: Scaled(3.0)})
    with reserve("127.0.0.1", 0) as held:
        port = held.getsockname()[1]
        with (
            listening(core_of(*models), ServerOptions(grpc_port=port, token=TOKEN)),
            triton.InferenceServerClient(f"127.0.0.1:{port}") as found,
        ):
            yield found


def asked(client: Any, model: str = "echo", datatype: str = "FP32", given: Any = None, **how: Any) -> Any:
    given = np.ones((1, 2), dtype=np.float32) if given is None else given
    tensor = triton.InferInput(how.pop("name", "anything"), list(given.shape), datatype)
    tensor.set_data_from_numpy(given)
    return client.infer(model, [tensor], headers=SHOWN, **how)


@pytest.mark.parametrize("datatype", DATATYPES)
def test_every_type_comes_back_bit_by_bit(client: Any, datatype: str) -> None:
    given = values(datatype)
    assert np.array_equal(asked(client, datatype=datatype, given=given).as_numpy("output"), given)


@pytest.mark.parametrize("algorithm", ["gzip", "deflate"])
def test_calls_may_be_compressed(client: Any, algorithm: str) -> None:
    assert asked(client, compression_algorithm=algorithm).as_numpy("output").tolist() == [[1.0, 1.0]]


def typed(datatype: str, field: str, numbers: list[Any]) -> Any:
    """A request that holds its values as a list, which this client never sends by itself."""
    from tritonclient.grpc import service_pb2

    request = service_pb2.ModelInferRequest(model_name="echo")
    tensor = request.inputs.add(name="x", datatype=datatype, shape=[len(numbers)])
    getattr(tensor.contents, field).extend(numbers)
    return request


@pytest.mark.parametrize(
    ("datatype", "field", "numbers"),
    [
        ("BOOL", "bool_contents", [True, False]),
        *[(name, "int_contents", [-128, 127]) for name in ("INT8", "INT16", "INT32")],
        *[(name, "uint_contents", [0, 255]) for name in ("UINT8", "UINT16", "UINT32")],
        ("INT64", "int64_contents", [-(2**63)]),
        ("UINT64", "uint64_contents", [2**64 - 1]),
        ("FP32", "fp32_contents", [0.5]),
        ("FP64", "fp64_contents", [0.1]),
        ("BYTES", "bytes_contents", [b"", b"\xff"]),
    ],
)
def test_values_may_come_as_lists(client: Any, datatype: str, field: str, numbers: list[Any]) -> None:
    found = client._client_stub.ModelInfer(typed(datatype, field, numbers), metadata=tuple(SHOWN.items()))
    array = triton.InferResult(found).as_numpy("output")
    assert array.tolist() == numbers


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (lambda: typed("INT8", "int_contents", [300]), "no room"),
        (lambda: typed("FP16", "fp32_contents", [1.0]), "raw_input_contents"),
        (lambda: typed("FP32", "int_contents", [1]), "0 elements"),
        (lambda: typed("WHAT", "int_contents", [1]), "unknown"),
    ],
)
def test_lists_that_do_not_fit_are_refused(client: Any, request_: Any, words: str) -> None:
    import grpc

    with pytest.raises(grpc.RpcError, match=words) as caught:
        client._client_stub.ModelInfer(request_(), metadata=tuple(SHOWN.items()))
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


def test_health_metadata_statistics_and_index(client: Any) -> None:
    asked(client, "m", name="x", model_version="2", request_id="seven")
    assert client.is_server_live(headers=SHOWN)
    assert client.is_server_ready(headers=SHOWN)
    assert client.is_model_ready("m", "2", headers=SHOWN)
    assert not client.is_model_ready("m", "9", headers=SHOWN)
    assert client.get_server_metadata(headers=SHOWN).name == "shoal"
    assert list(client.get_model_metadata("m", headers=SHOWN).inputs[0].shape) == [-1, 2]
    assert {each.name for each in client.get_model_repository_index(headers=SHOWN).models} == {"echo", "m"}
    found = client.get_inference_statistics("m", headers=SHOWN).model_stats
    assert sum(each.inference_stats.success.count for each in found) >= 1


@pytest.mark.parametrize(
    ("model", "how", "status", "words"),
    [
        ("nobody", {}, "NOT_FOUND", "no model"),
        ("m", {"model_version": "9"}, "NOT_FOUND", "version 9"),
        ("m", {"name": "bad"}, "INVALID_ARGUMENT", "no input 'bad'"),
        ("m", {"name": "x", "timeout": 1}, "DEADLINE_EXCEEDED", "time"),
        ("m", {"name": "x", "priority": 999}, "INVALID_ARGUMENT", "priority '999'"),
    ],
)
def test_errors_have_a_code_and_a_line(client: Any, model: str, how: Any, status: str, words: str) -> None:
    with pytest.raises(triton.InferenceServerException, match=words) as caught:
        asked(client, model, **how)
    assert caught.value.status() == f"StatusCode.{status}"


def test_without_the_token_nothing_is_answered(client: Any) -> None:
    with pytest.raises(triton.InferenceServerException, match="token") as caught:
        client.is_server_live()
    assert caught.value.status() == "StatusCode.UNAUTHENTICATED"


def test_numbers_and_types_of_every_field_are_those_of_the_public_protocol() -> None:
    from tritonclient.grpc import service_pb2

    def public(name: str) -> Any:
        known = service_pb2.DESCRIPTOR.message_types_by_name
        nested = [inner for each in known.values() for inner in each.nested_types if inner.name == name]
        return known[name] if name in known else nested[0]

    for name, made in message_classes().items():
        theirs = {field.name: field for field in public(name).fields}
        for ours in made.DESCRIPTOR.fields:
            same = theirs[ours.name]
            assert (ours.number, ours.type, ours.is_repeated) == (same.number, same.type, same.is_repeated), ours.name
    service = service_pb2.DESCRIPTOR.services_by_name[SERVICE.partition(".")[2]]
    assert set(METHODS) <= {method.name for method in service.methods}
    assert {f"{method}{kind}" for method in METHODS for kind in ("Request", "Response")} <= set(LAYOUT)
