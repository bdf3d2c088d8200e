"""Bodies of the Open Inference Protocol: what is decoded, what is refused, and that nothing else happens."""

import json
import random

import msgspec
import numpy as np
import pytest

from shoal.serve import plain
from shoal.serve.errors import BodyTooLarge, RequestError
from shoal.serve.protocol import InferRequest, decode_request, encode_answer, octets
from shoal.serve.tensors import DATATYPES, TensorSpec

SPECS = (TensorSpec("x", "FP32", (-1, 2)),)
VALUES = {
    "BOOL": [True, False],
    "BYTES": ["a", "bä"],
    **{name: [0, 1] for name in DATATYPES if "INT" in name},
    **{name: [0.5, -1.0] for name in ("BF16", "FP16", "FP32", "FP64")},
}


def body(**tensor: object) -> bytes:
    return json.dumps({"inputs": [{"name": "x", "shape": [2], "datatype": "FP32", **tensor}]}).encode()


def array_of(datatype: str) -> np.ndarray:
    values = [each.encode() for each in VALUES[datatype]] if datatype == "BYTES" else VALUES[datatype]
    return np.array(values, dtype=DATATYPES[datatype])


@pytest.mark.parametrize("datatype", DATATYPES)
def test_every_type_as_json_and_as_bytes_there_and_back(datatype: str) -> None:
    array = array_of(datatype)
    _, as_json = decode_request(body(datatype=datatype, data=VALUES[datatype]), None)
    head = body(datatype=datatype, parameters={"binary_data_size": len(octets(array))})
    _, as_bytes = decode_request(head + octets(array), len(head))
    for found in (as_json["x"], as_bytes["x"]):
        assert found.dtype == array.dtype
        assert found.tolist() == array.tolist()
    binary = InferRequest([], parameters={"binary_data_output": True})
    answer, length = encode_answer(binary, "m", 1, {"y": array})
    assert answer[length:] == octets(array)
    told, length = encode_answer(InferRequest([], id="7"), "m", 1, {"y": array})
    assert length is None
    assert json.loads(told) == {
        "model_name": "m",
        "model_version": "1",
        "id": "7",
        "outputs": [{"name": "y", "datatype": datatype, "shape": [2], "data": VALUES[datatype]}],
    }


def test_nested_and_flat_data_are_the_same() -> None:
    for data in ([1, 2, 3, 4], [[1, 2], [3, 4]]):
        _, found = decode_request(body(shape=[2, 2], data=data), None)
        assert found["x"].tolist() == [[1.0, 2.0], [3.0, 4.0]]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (b"", "no inference request"),
        (b"[]", "no inference request"),
        (b'{"inputs": []}', "1 to 64 inputs"),
        (b'{"inputs": [{"name": "x"}]}', "missing required field `shape`"),
        (body(data=[1]), r"has 1 elements; shape \[2\] has 2"),
        (body(data=[1, "2"]), "what is not FP32"),
        (body(data=[1, None]), "what is not FP32"),
        (body(data=[1, [2]]), "what is not FP32"),
        (body(data=[[1], [2, 3]]), "rows of different lengths"),
        (body(), "neither data nor binary_data_size"),
        (body(datatype="FP99", data=[1, 2]), "datatype 'FP99' is unknown"),
        (body(datatype="UINT8", data=[1, 256]), "no room for"),
        (body(datatype="INT32", data=[1, 1.5]), "what is not INT32"),
        (body(datatype="BYTES", data=[1, 2]), "what is not BYTES"),
        (body(shape=[-1], data=[1, 2]), "a length is 0 or more"),
        (body(shape=[1] * 17, data=[1]), "17 dimensions; 16 is the most"),
        (body(shape=[1 << 40, 1 << 40], data=[1]), "is the most"),
        (body(parameters={"binary_data_size": 1 << 60}), "0 are left in the body"),
        (body(parameters={"binary_data_size": True}), "says True bytes"),
        (b'{"inputs": [' + b"[" * 5000, "no inference request"),
        (body(data=[1, 2]) + b"xx", "no inference request"),
    ],
)
def test_what_is_malformed_is_refused_on_one_line(given: bytes, words: str) -> None:
    with pytest.raises(RequestError, match=words) as refused:
        decode_request(given, None)
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 400


@pytest.mark.parametrize(
    ("size", "tail", "words"),
    [
        (8, bytes(7), "7 are left"),
        (7, bytes(7), "has 7 bytes; FP32 of shape"),
        (8, bytes(9), "1 bytes of the body belong to no input"),
    ],
)
def test_bytes_that_do_not_fit_are_refused(size: int, tail: bytes, words: str) -> None:
    head = body(parameters={"binary_data_size": size})
    with pytest.raises(RequestError, match=words):
        decode_request(head + tail, len(head))


@pytest.mark.parametrize("tail", [b"\xff\xff\xff\xff12345678", b"\x01\x00\x00\x00a\x00", bytes(9), b"\x00" * 3])
def test_strings_that_do_not_fit_are_refused(tail: bytes) -> None:
    head = body(datatype="BYTES", parameters={"binary_data_size": len(tail)})
    with pytest.raises(RequestError, match="input 'x'"):
        decode_request(head + tail, len(head))


def test_a_list_with_one_long_string_takes_no_more_memory_than_its_text() -> None:
    text = b"[" + b"0," * 100_000 + b'"' + b"a" * 100_000 + b'"]'
    given = b'{"inputs": [{"name": "x", "shape": [100001], "datatype": "FP32", "data": ' + text + b"}]}"
    with pytest.raises(RequestError, match="what is not FP32"):  # numpy would make a table of 40 GB
        decode_request(given, None)
    strings = b'["' + b'","' * 100_000 + b"a" * 100_000 + b'"]'
    given = b'{"inputs": [{"name": "x", "shape": [100001], "datatype": "BYTES", "data": ' + strings + b"}]}"
    assert decode_request(given, None)[1]["x"].nbytes < 10_000_000


def test_the_time_a_client_waits_is_in_microseconds() -> None:
    assert InferRequest([], parameters={"timeout": 2_500_000}).timeout == 2.5
    assert InferRequest([], parameters={"timeout": "soon"}).timeout is None


@pytest.mark.parametrize(
    ("given", "level"), [({}, 2), ({"priority": 0}, 2), ({"priority": 1}, 1), ({"priority": 7}, 7)]
)
def test_one_is_the_most_urgent(given: dict, level: int) -> None:  # type: ignore[type-arg]
    assert InferRequest([], parameters=given).level == level


@pytest.mark.parametrize("given", [-1, 256, 1.5, True, "high", None, [1]])
def test_a_priority_that_is_none_is_refused(given: object) -> None:
    with pytest.raises(RequestError, match="is not a number from 0 to 255"):
        _ = InferRequest([], parameters={"priority": given}).level


def test_an_output_that_is_not_there_is_named() -> None:
    request = msgspec.json.decode(b'{"inputs": [], "outputs": [{"name": "z"}]}', type=InferRequest)
    with pytest.raises(RequestError, match="no output 'z'; it gives y"):
        encode_answer(request, "m", 1, {"y": np.zeros(1)})


class TestPlain:
    @pytest.mark.parametrize(
        ("text", "rows", "alone"),
        [
            ("[1, 2]", [[1, 2]], True),
            ("[[1, 2], [3, 4]]", [[1, 2], [3, 4]], False),
            (' {"inputs": [[1, 2]]}', [[1, 2]], False),
            ('{"inputs": {"x": [1, 2]}}', [[1, 2]], True),
        ],
    )
    def test_bodies(self, text: str, rows: list, alone: bool) -> None:
        found, single = plain.decode_plain(text.encode(), SPECS)
        assert (found["x"].tolist(), single) == (rows, alone)
        assert found["x"].dtype == np.float32

    @pytest.mark.parametrize("text", ["", "{", '{"input": 1}', '"a"', "[[1], [1, 2]]", '[["a"]]', "null", "[" * 99999])
    def test_what_is_malformed_is_refused(self, text: str) -> None:
        with pytest.raises(RequestError):
            plain.decode_plain(text.encode(), SPECS)

    def test_types_of_undeclared_inputs_are_guessed(self) -> None:
        for text, dtype in (("[1, 2]", np.int64), ("[1, 2.5]", np.float32), ("[true]", np.bool_), ('["a"]', object)):
            assert plain.decode_plain(text.encode(), ())[0]["input"].dtype == dtype

    def test_a_model_of_several_inputs_wants_names(self) -> None:
        with pytest.raises(RequestError, match="several inputs"):
            plain.decode_plain(b"[1]", (*SPECS, TensorSpec("z", "FP32", (-1,))))

    def test_more_json_than_the_limit_is_refused(self) -> None:
        with pytest.raises(BodyTooLarge):
            plain.decode_plain(b" " * (17 << 20), SPECS)

    def test_the_example_fits(self) -> None:
        specs = (*SPECS, TensorSpec("key", "BYTES", (-1,)), TensorSpec("n", "INT32", (3, -1)))
        found, _ = plain.decode_plain(plain.example(specs), specs)
        assert {name: each.shape for name, each in found.items()} == {"x": (1, 2), "key": (1,), "n": (3, 1)}


def is_refused(given: bytes, length: int | None) -> bool:
    """Whether both decoders refuse it; anything but a RequestError is an error."""
    count = 0
    try:
        decode_request(given, length)
    except RequestError as error:
        count += "\n" not in str(error)
    try:
        plain.decode_plain(given, SPECS)
    except RequestError as error:
        count += "\n" not in str(error)
    return count == 2


def fuzz(count: int, seed: int) -> int:
    """Feed damaged bodies to the decoders; how many were refused by both."""
    chance, refused = random.Random(seed), 0
    head = body(parameters={"binary_data_size": 8})
    seeds = [body(data=[1.5, 2]), head + bytes(8), b'{"inputs": [[1, 2], [3, 4]]}', b'{"inputs": {"x": [1.0, 2.0]}}']
    words = [b"[", b"]", b"{", b'"', b"-1", b"1e999", b"null", b"99999999999999999999", b"\xff", b"\\ud800", b","]
    for _ in range(count):
        given = bytearray(chance.choice(seeds))
        for _ in range(chance.randint(1, 6)):
            at = chance.randrange(len(given) + 1)
            match chance.randrange(4):
                case 0:
                    del given[at : at + chance.randint(1, 9)]
                case 1:
                    given[at:at] = chance.choice(words)
                case 2 if at < len(given):
                    given[at] = chance.randrange(256)
                case _:
                    given[at:at] = given[: chance.randint(0, 40)]
        length = chance.choice([None, len(head), chance.randrange(len(given) + 9)])
        refused += is_refused(bytes(given), length)
    return refused


def test_damaged_bodies_are_refused_or_decoded_and_nothing_else() -> None:
    assert fuzz(3000, seed=1) > 1000


@pytest.mark.soak("serve")
@pytest.mark.timeout(1200)
def test_a_hundred_thousand_damaged_bodies() -> None:
    assert fuzz(100_000, seed=2) > 50_000
