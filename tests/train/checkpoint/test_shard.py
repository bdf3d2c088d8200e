"""Tensors as bytes: what the library reads back is what went in."""

import pytest
import torch
from safetensors.torch import load

from shoal.train.checkpoint.shard import DTYPES, ShardError, parse, pieces


def test_every_kind_of_tensor_comes_back_to_the_bit() -> None:
    torch.manual_seed(0)
    tensors = {str(dtype): (torch.randn(3, 5) * 9).to(dtype) for dtype in DTYPES}
    tensors |= {"scalar": torch.tensor(2.5), "empty": torch.empty(0, 3), "turned": torch.randn(4, 6).t()}
    tensors["nan"] = torch.tensor([float("nan"), float("-inf"), -0.0])
    data = b"".join(map(bytes, pieces(tensors, {"text": "ä\n"})))
    found, texts = parse(data)
    assert texts == {"text": "ä\n"}
    assert found.keys() == tensors.keys() == load(data).keys()
    for name, tensor in tensors.items():
        assert (found[name].dtype, found[name].shape) == (tensor.dtype, tensor.shape)
        assert found[name].contiguous().view(-1).view(torch.uint8).tolist() == (
            tensor.contiguous().view(-1).view(torch.uint8).tolist()
        )


@pytest.mark.parametrize("bad", [torch.zeros(2, dtype=torch.complex64), torch.eye(2).to_sparse()])
def test_other_kinds_are_refused_by_name(bad: torch.Tensor) -> None:
    with pytest.raises(ShardError, match="'odd' is a"):
        list(pieces({"odd": bad}))


@pytest.mark.parametrize("data", [b"", b"\xff" * 64, (2**62).to_bytes(8, "little") + b"{}", b"\2\0\0\0\0\0\0\0[]"])
def test_what_is_no_safetensors_file_is_refused(data: bytes) -> None:
    with pytest.raises(ShardError, match="is no safetensors file"):
        parse(data)
