"""The contract of a precision: hooks on what was joined, put there when it is made, and state that others take over."""

from torch import Tensor


class ModelPrecision:
    """Keeps a joined model in few bits. Used by the script's main thread."""

    def state(self) -> dict[str, Tensor]:
        """What it remembers, by name: the same on all workers, changed in place, of one size for ever.

        A checkpoint keeps it, and whoever takes over another worker's weights takes this over with them.
        """
        return {}
