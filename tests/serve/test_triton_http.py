"""Conformance: NVIDIA's own client speaks to the server over HTTP, every data type in every encoding."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from served import EchoModel, MemorySource, Scaled, core_of, listening

from shoal.serve.tensors import DATATYPES

triton = pytest.importorskip("tritonclient.http")


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    models = MemorySource("echo", {1: EchoModel}), MemorySource("m", {1: lambda: Scaled(2.0), 2: lambda: Scaled(3.0)})
    with listening(core_of(*models)) as address, triton.InferenceServerClient(address) as found:
        yield found


def values(datatype: str, count: int = 600) -> np.ndarray[Any, Any]:
    """Of the type, with its extremes; bfloat16 goes through the client as float32."""
    if datatype == "BYTES":
        return np.array([b"", "grün".encode(), b"\x00\xff", *[b"x" * 9] * (count - 3)], dtype=object).reshape(-1, 2)
    if datatype == "BF16":
        return np.array([0.0, -1.5, 3.0, 2.0**100] * (count // 4), dtype=np.float32).reshape(-1, 2)
    dtype = DATATYPES[datatype]
    limits = np.iinfo(dtype) if dtype.kind in "iu" else np.finfo(dtype) if dtype.kind == "f" else None
    ends = [0, 1, limits.min, limits.max] if limits is not None else [0, 1, 1, 0]
    return np.array(ends * (count // 4), dtype=dtype).reshape(-1, 2)


def echo(client: Any, datatype: str, given: Any, *, binary: tuple[bool, bool] = (True, True), **how: Any) -> Any:
    tensor = triton.InferInput("anything", list(given.shape), datatype)
    tensor.set_data_from_numpy(given, binary_data=binary[0])
    wish = triton.InferRequestedOutput("output", binary_data=binary[1])
    return client.infer("echo", [tensor], outputs=[wish], **how).as_numpy("output")


@pytest.mark.parametrize("datatype", DATATYPES)
def test_every_type_comes_back_bit_by_bit_in_binary(client: Any, datatype: str) -> None:
    given = values(datatype)
    assert np.array_equal(echo(client, datatype, given), given)


@pytest.mark.parametrize("datatype", sorted(set(DATATYPES) - {"FP16", "BF16"}))  # the client has no JSON for these
@pytest.mark.parametrize("binary", [(False, False), (True, False), (False, True)], ids=str)
def test_every_type_comes_back_in_json_and_mixed(client: Any, datatype: str, binary: tuple[bool, bool]) -> None:
    given = values(datatype)
    if datatype == "BYTES":
        given = np.array([b"", "grün".encode(), b"word", b"x"], dtype=object).reshape(2, 2)  # JSON has text alone
    found = echo(client, datatype, given, binary=binary)
    if found.dtype == object:
        found = np.array([each if isinstance(each, bytes) else each.encode() for each in found.ravel()], dtype=object)
    assert np.array_equal(found.ravel(), given.ravel())


@pytest.mark.parametrize("asked", [None, "gzip", "deflate"])
@pytest.mark.parametrize("answered", [None, "gzip", "deflate"])
@pytest.mark.parametrize("binary", [True, False])
def test_bodies_may_be_compressed_both_ways(client: Any, asked: str, answered: str, binary: bool) -> None:
    given, how = values("FP32"), {"request_compression_algorithm": asked, "response_compression_algorithm": answered}
    assert np.array_equal(echo(client, "FP32", given, binary=(binary, binary), **how), given)


def test_a_compressed_answer_is_smaller(client: Any) -> None:
    tensor = triton.InferInput("anything", [4096], "FP32")
    tensor.set_data_from_numpy(np.zeros(4096, dtype=np.float32))
    body, length = client.generate_request_body([tensor])
    headers = {"Inference-Header-Content-Length": str(length), "Accept-Encoding": "gzip"}
    found = client._post("v2/models/echo/infer", body, headers, None)
    assert found.get("content-encoding") == "gzip"
    assert int(found.get("content-length")) < 4096


def test_an_encoding_of_weight_zero_is_not_used(client: Any) -> None:
    found = client._post("v2/models/m/infer", b"{" + b" " * 2000, {"Accept-Encoding": "gzip;q=0"}, None)
    assert found.get("content-encoding") is None


def test_several_inputs_and_an_id(client: Any) -> None:
    tensors = [triton.InferInput(name, [2], "INT32") for name in ("a", "b")]
    for at, each in enumerate(tensors):
        each.set_data_from_numpy(np.array([at, at + 1], dtype=np.int32), binary_data=bool(at))
    found = client.infer("echo", tensors, request_id="seven")
    assert found.get_response()["id"] == "seven"
    assert (found.as_numpy("a").tolist(), found.as_numpy("b").tolist()) == ([0, 1], [1, 2])


def test_health_metadata_statistics_and_index(client: Any) -> None:
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("m", "2")
    assert not client.is_model_ready("m", "9")
    assert client.get_server_metadata()["name"] == "shoal"
    assert client.get_model_metadata("m")["inputs"] == [{"name": "x", "datatype": "FP32", "shape": [-1, 2]}]
    assert {each["name"] for each in client.get_model_repository_index()} == {"echo", "m"}
    assert client.get_inference_statistics("echo")["model_stats"][0]["inference_stats"]["success"]["count"] > 0


@pytest.mark.parametrize(
    ("model", "version", "datatype", "status", "words"),
    [
        ("nobody", "", "FP32", "404", "no model"),
        ("m", "9", "FP32", "404", "version 9"),
        ("m", "x", "FP32", "404", "not a version number"),
        ("m", "", "FP32", "400", "no input 'bad'"),
        ("echo", "", "FP32", "500", "this input is bad"),
    ],
)
def test_errors_have_a_status_and_a_line(
    client: Any, model: str, version: str, datatype: str, status: str, words: str
) -> None:
    tensors = [triton.InferInput(name, [1], datatype) for name in ("bad", "other")]
    for each in tensors:
        each.set_data_from_numpy(np.zeros(1, dtype=np.float32))
    with pytest.raises(triton.InferenceServerException, match=words) as caught:
        client.infer(model, tensors, model_version=version)
    assert caught.value.status() == status


def test_a_timeout_of_the_client_is_kept(client: Any) -> None:
    tensor = triton.InferInput("x", [1, 2], "FP32")
    tensor.set_data_from_numpy(np.zeros((1, 2), dtype=np.float32))
    with pytest.raises(triton.InferenceServerException, match="time") as caught:
        client.infer("m", [tensor], timeout=1)
    assert caught.value.status() == "504"


def test_a_priority_of_the_client_is_read(client: Any) -> None:
    tensor = triton.InferInput("x", [1, 2], "FP32")
    tensor.set_data_from_numpy(np.zeros((1, 2), dtype=np.float32))
    assert client.infer("m", [tensor], priority=1).as_numpy("y").tolist() == [[0.0, 0.0]]
    with pytest.raises(triton.InferenceServerException, match="priority '999'"):
        client.infer("m", [tensor], priority=999)
