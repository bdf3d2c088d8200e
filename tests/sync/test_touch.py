"""A watched tensor is brought up to date by the first use of its content, and by nothing else."""

import copy
import io
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from shoal.sync import touch

X = torch.ones(2, 3)


class Stale:
    """A parameter of zeros that becomes ones when it is touched."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor, self.touched = tensor, 0
        touch.watch(tensor, self.act)

    def act(self) -> None:
        self.touched += 1
        with torch.no_grad():
            self.tensor.fill_(1.0)


def stale() -> Stale:
    return Stale(nn.Parameter(torch.zeros(3, 3)))


@pytest.mark.parametrize(
    "use",
    [
        lambda p: F.linear(X, p),
        lambda p: X @ p,
        lambda p: p + 1,
        lambda p: 1 - p,
        lambda p: p.sum(),
        lambda p: p.data,
        lambda p: p.detach().numpy(),
        lambda p: p[0],
        lambda p: torch.cat([p, p]),
        lambda p: torch._foreach_add([p], 1.0),
        lambda p: list(p),
        lambda p: repr(p),
        lambda p: p.view(-1)[0].item(),
        lambda p: p.clone(),
        lambda p: nn.utils.parameters_to_vector([p]),
        lambda p: p.is_shared(),
        lambda p: torch.stack(tensors=[p, p]),
        lambda p: torch.save({"p": p}, io.BytesIO()),
        lambda p: p.data_ptr(),
    ],
)  # fmt: skip
def test_any_use_of_its_content_is_a_touch(use: Callable[[Tensor], object]) -> None:
    one = stale()
    use(one.tensor)
    assert one.touched == 1
    assert type(one.tensor) is nn.Parameter
    assert float(one.tensor.detach().sum()) == 9.0
    use(one.tensor)
    assert one.touched == 1


@pytest.mark.parametrize(
    "look",
    [
        lambda p: (p.shape, p.dtype, p.device, p.size(), p.dim(), p.numel(), p.is_leaf, len(p)),
        lambda p: (p.grad, p.requires_grad, p.is_sparse, p.is_floating_point(), p.nbytes, p.element_size()),
        lambda p: setattr(p, "grad", torch.ones(3, 3)),
        lambda p: p.requires_grad_(True),
        lambda p: p.register_hook(lambda g: None),
        lambda p: p.register_post_accumulate_grad_hook(lambda p: None),
        lambda p: (isinstance(p, nn.Parameter), hash(p), p is p, {p: 1}[p]),
        lambda p: torch.optim.SGD([p], lr=0.1).zero_grad(),
        lambda p: nn.Module().register_parameter("p", p),
    ],
)
def test_looking_at_what_does_not_change_is_none(look: Callable[[Tensor], object]) -> None:
    one = stale()
    look(one.tensor)
    assert one.touched == 0
    touch.release(one.tensor)
    assert type(one.tensor) is nn.Parameter


def test_a_released_tensor_is_not_brought_up_to_date() -> None:
    one = stale()
    assert touch.release(one.tensor) is not None
    assert touch.release(one.tensor) is None
    assert one.tensor.sum().item() == 0.0
    assert one.touched == 0


@pytest.mark.parametrize(
    ("make", "input_"),
    [
        (lambda: nn.LSTM(3, 4), torch.ones(2, 1, 3)),
        (lambda: nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0), torch.ones(2, 1, 4)),
        (lambda: nn.Embedding(5, 3), torch.tensor([0, 4])),
        (lambda: nn.BatchNorm1d(3), X),
        (lambda: nn.Conv1d(1, 2, 2), torch.ones(1, 1, 4)),
        (lambda: nn.utils.parametrizations.weight_norm(nn.Linear(3, 3)), X),
    ],
    ids=["lstm", "attention", "embedding", "norm", "conv", "parametrized"],
)
@pytest.mark.parametrize("training", [True, False])
def test_a_forward_pass_sees_what_is_up_to_date(make: Callable[[], nn.Module], input_: Tensor, training: bool) -> None:
    model = make().train(training)
    expected = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in expected.parameters():
            parameter.fill_(1.0)
    watched = [Stale(parameter) for parameter in model.parameters()]
    with torch.inference_mode(not training):
        found, wanted = model(input_), expected(input_)
    first = lambda out: out[0] if isinstance(out, tuple) else out  # noqa: E731
    assert torch.equal(first(found), first(wanted))
    assert all(one.touched == 1 for one in watched)


def test_a_function_of_its_own_sees_what_is_up_to_date() -> None:
    """Torch hands arguments to a custom function as they are; inside, any use is a touch."""

    class Product(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, weight):  # type: ignore[no-untyped-def]
            ctx.save_for_backward(x, weight)
            return x @ weight

        @staticmethod
        def backward(ctx, gradient):  # type: ignore[no-untyped-def]
            x, weight = ctx.saved_tensors
            return gradient @ weight.T, x.T @ gradient

    one = stale()
    x = X.clone().requires_grad_()
    Product.apply(x, one.tensor).sum().backward()  # type: ignore[no-untyped-call]
    assert one.touched == 1
    assert bool((x.grad == 3).all())
    assert bool((one.tensor.grad == 2).all())


def test_copies_and_files_hold_plain_parameters_that_are_up_to_date() -> None:
    model = nn.Linear(3, 3)
    watched = [Stale(parameter) for parameter in model.parameters()]
    twin = copy.deepcopy(model)
    assert all(type(p) is nn.Parameter and bool((p == 1).all()) for p in twin.parameters())
    again = [Stale(parameter) for parameter in model.parameters()]
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    read = torch.load(file, weights_only=False)
    assert all(type(p) is nn.Parameter and bool((p == 1).all()) for p in read.parameters())
    assert [one.touched for one in watched + again] == [1] * 4


def test_a_plain_tensor_can_be_watched_and_a_subclass_not() -> None:
    one = Stale(torch.zeros(3, requires_grad=True))
    assert one.tensor.sum().item() == 3.0
    assert type(one.tensor) is Tensor

    class Own(Tensor):
        pass

    assert not touch.can_watch(torch.zeros(2).as_subclass(Own))


def test_a_failed_wait_is_not_hidden() -> None:
    def fail() -> None:
        raise RuntimeError("lost")

    parameter = nn.Parameter(torch.zeros(2))
    touch.watch(parameter, fail)
    with pytest.raises(RuntimeError, match="lost"):
        parameter.sum()
