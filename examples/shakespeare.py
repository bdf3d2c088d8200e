"""A transformer that writes character by character, trained on one text file.

python examples/shakespeare.py --text FILE
shoal run --workers 2 examples/shakespeare.py --text FILE --width 256 --depth 6
"""

import argparse
import math
import os
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

import shoal


class Windows(Dataset):
    """Stretches of `context` characters, evenly spread, each with its like one character later."""

    def __init__(self, codes: Tensor, context: int, count: int) -> None:
        last = len(codes) - context - 1
        if last < 0:
            raise ValueError(f"{len(codes)} characters hold no window of {context}; give a longer text")
        self.starts = [i * last // max(1, count - 1) for i in range(count)]
        self.codes, self.context = codes, context

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        window = self.codes[self.starts[index] :][: self.context + 1]
        return window[:-1], window[1:]


def read(path: Path) -> tuple[Tensor, Tensor, int]:
    """The text but its last tenth, that tail, and how many different characters there are."""
    text = path.read_text(encoding="utf-8")
    code = {letter: i for i, letter in enumerate(sorted(set(text)))}
    codes = torch.tensor([code[letter] for letter in text])
    cut = len(codes) * 9 // 10
    return codes[:cut], codes[cut:], len(code)


class Block(nn.Module):
    """Attention to what came before, then a small network; each adds to its input."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        batch, time, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, time, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(batch, time, width))
        return x + self.mlp(self.norm2(x))


class Writer(nn.Module):
    def __init__(self, letters: int, width: int, depth: int, context: int) -> None:
        super().__init__()
        heads = width // 32
        self.letter, self.place = nn.Embedding(letters, width), nn.Embedding(context, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(depth)))
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, letters))

    def forward(self, x: Tensor) -> Tensor:
        places = torch.arange(x.shape[1], device=x.device)
        return self.head(self.blocks(self.letter(x) + self.place(places)))


def cross_entropy(model: nn.Module, x: Tensor, y: Tensor, device: torch.device) -> Tensor:
    return F.cross_entropy(model(x.to(device)).flatten(0, 1), y.to(device).flatten())


@torch.no_grad()
def evaluate(model: nn.Module, data: Dataset, device: torch.device) -> float:
    """Mean loss per character."""
    model.eval()
    losses = [cross_entropy(model, x, y, device).item() * len(x) for x, y in DataLoader(data, batch_size=50)]
    model.train()
    return sum(losses) / len(data)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    default = Path(os.environ.get("SHOAL_DATA", "data")) / "tinyshakespeare.txt"
    parser.add_argument("--text", type=Path, default=default, help="$SHOAL_DATA/tinyshakespeare.txt")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--limit", type=int, default=200, help="steps per epoch")
    parser.add_argument("--batch", type=int, default=16, help="windows per worker and step")
    parser.add_argument("--context", type=int, default=64, help="characters the model sees")
    parser.add_argument("--width", type=int, default=128, help="a multiple of 32")
    parser.add_argument("--depth", type=int, default=4, help="blocks")
    parser.add_argument("--lr", type=float, default=1e-3)
    args = parser.parse_args()
    if not args.text.is_file():
        parser.error(f"no text at {args.text}; give one: --text FILE, or tinyshakespeare.txt in $SHOAL_DATA")
    if args.width % 32:
        parser.error(f"--width {args.width} does not divide into heads of 32; try {-args.width // 32 * -32}")
    return args


def main() -> None:
    args = arguments()
    run = shoal.start()
    train, tail, letters = read(args.text)
    # More workers see more windows in an epoch, so that --limit stays the number of steps.
    windows = Windows(train, args.context, args.limit * args.batch * run.size)
    held_out = Windows(tail, args.context, 200)
    model = Writer(letters, args.width, args.depth, args.context).to(run.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    loader = DataLoader(windows, batch_size=args.batch, shuffle=True)
    model, optimizer, loader = run.join(model, optimizer, loader)
    if run.is_main:
        print(f"{sum(p.numel() for p in model.parameters()):,} parameters, workers: {run.size}")

    for epoch in run.epochs(args.epochs):
        for x, y in loader:
            loss = cross_entropy(model, x, y, run.device)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            run.log(loss=loss)
        loss = evaluate(model, held_out, run.device)
        run.report(loss=loss, perplexity=math.exp(loss))
        if run.is_main:
            print(f"epoch {epoch}: loss {loss:.4f}, perplexity {math.exp(loss):.2f}")


if __name__ == "__main__":
    main()
