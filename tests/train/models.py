"""Four tiny models of different kinds, and data for each. None keeps running statistics or draws random numbers."""

import torch
from torch import Tensor, nn


class MLP(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


class CNN(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(1, 3, 3, padding=1), nn.Conv2d(3, 4, 3, stride=2)
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.first(x.reshape(-1, 1, 2, 3).repeat(1, 1, 3, 2)))
        return self.head(torch.tanh(self.second(x)).mean((2, 3)))


class LSTM(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cells = nn.LSTM(2, 5, batch_first=True)
        self.head = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        states, _ = self.cells(x.reshape(-1, 3, 2))
        return self.head(states[:, -1])


class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(2, 8)
        self.block = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.block(self.embed(x.reshape(-1, 3, 2))).mean(1))


MODELS = {"mlp": MLP, "cnn": CNN, "lstm": LSTM, "transformer": Transformer}


def make(kind: str | type[nn.Module] = "mlp", dtype: torch.dtype = torch.float32, seed: int = 3) -> nn.Module:
    torch.manual_seed(seed)
    return (MODELS[kind] if isinstance(kind, str) else kind)().to(dtype)
