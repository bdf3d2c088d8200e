"""Named plans: systems and models of the literature as compositions of terms, in one table."""

import msgspec


class Preset(msgspec.Struct, frozen=True, kw_only=True):
    """A plan somebody published."""

    text: str
    """The plan in its canonical text."""
    cites: str
    note: str


PRESETS: dict[str, Preset] = {
    "bsp": Preset(
        text="allreduce, every(1)",
        cites='Valiant 1990, "A bridging model for parallel computation"',
        note="bulk-synchronous parallel: compute, exchange, wait for all, repeat",
    ),
    "horovod": Preset(
        text="allreduce, every(1)",
        cites='Sergeev & Del Balso 2018, "Horovod: fast and easy distributed deep learning in TensorFlow"',
        note="ring all-reduce of gradients at every step",
    ),
}
