"""The newcomer's side of live catch-up: takes the state, makes the sender's updates, and compares.

    state ── updates … ── proof: the same bits ── asks to be let in ── updates … ── the donor's last words ── enters

If anything fails before that, it enters without, and the others wait until it has the whole state.
"""

from collections.abc import Mapping

from torch import Tensor

from shoal.core.clock import now
from shoal.core.errors import Evicted, LayoutError
from shoal.groups.state_streaming import StateStreamClient
from shoal.membership.protocol import StreamStateFrom
from shoal.train.catchup.update import UPDATE, bulk, proof, repeat
from shoal.train.checkpoint.shard import parse
from shoal.train.checkpoint.snapshot import put_common
from shoal.train.joined import JoinedModels

CLOSE = 8
"""Updates that a newcomer may be behind when it asks to be let in: more than that it makes while the view is made."""
PATIENCE = 20.0
"""Seconds a newcomer tries to keep up with the others' updates."""


class CatchUpReceiver:
    """Of a newcomer that has joined once."""

    def __init__(self, client: StateStreamClient, joined: JoinedModels) -> None:
        self.client, self.joined = client, joined
        self.why = ""
        """Why nothing came of it."""
        self.proved = False
        """Whether it has been shown to hold the sender's bits."""
        self.updates = 0
        """Made here."""
        self._began = now()
        """When the state was here."""
        self.latest = 0
        """Bytes of updates that came since this was last set to 0."""

    def receive(self, offer: StreamStateFrom | None) -> bool:
        """Take in what has come; False once this worker has caught up, or the state cannot be had."""
        if self.client.follow(offer):
            self.proved, self.updates = False, 0
        took = self.catch_up()
        self.why = self.why or ("" if self.proved else self.client.hopeless)
        asks = self.proved and self._keeps_up(took)
        return not asks and not self.why

    def _keeps_up(self, took: int) -> bool:
        """Whether little came while the updates were made that had come before.

        A worker that is slower than the others falls behind more and more; they would wait for it at its entry.
        """
        if self.client.pending <= max(took // 2, CLOSE):
            return True
        if now() - self._began > PATIENCE:
            self.why, self.proved = f"{self.client.pending} updates came while {took} were made here", False
        return False

    def catch_up(self) -> int:
        """Make the updates that have come; return how many items there were."""
        items = self.client.items()
        for item in items:
            if not self.why:
                self._use(bytes(item))
        return len(items)

    def _use(self, data: bytes) -> None:
        tensors, texts = parse(data, "an item of a stream")
        match texts.get("kind"):
            case "state":
                try:
                    put_common(self.joined, 0, tensors, texts)
                    self._began = now()
                except LayoutError as error:
                    self.why = str(error)
            case "update":
                self._update(self.updates + 1, tensors, texts)
                self.latest += len(data)
            case "proof":
                self.proved = proof(bulk([self.joined])) == texts["proof"]
                self.why = "" if self.proved else "updates come to other bits here"
            case _:
                self.why = texts.get("why", "it was refused")

    def _update(self, number: int, tensors: Mapping[str, Tensor], texts: Mapping[str, str]) -> None:
        with self.joined.suppress_steps():
            repeat(self.joined.members.optimizers, tensors, texts)
        self.updates = number

    def lacks(self, tensors: Mapping[str, Tensor], texts: Mapping[str, str]) -> bool:
        """Return whether updates are still under way, which neither the stream nor the donor has brought."""
        self.catch_up()
        needed = range(self.updates + 1, int(texts["through"]) + 1)
        return not self.why and any(f"{UPDATE}{number}" not in tensors for number in needed)

    def rest(self, tensors: dict[str, Tensor], texts: Mapping[str, str]) -> None:
        """Complete what the donor handed over by what was streamed before."""
        self.catch_up()
        while (data := tensors.pop(f"{UPDATE}{self.updates + 1}", None)) is not None:
            self._update(self.updates + 1, *parse(data.numpy().tobytes(), "an update of a stream"))
        for name in [name for name in tensors if name.startswith(UPDATE)]:
            del tensors[name]  # it came before the view ended, and its sender could not know
        streamed = bulk([self.joined])
        if self.why or proof(streamed) != texts["stream"]:
            # Something but the optimizer has changed the weights since the proof. All wait for this worker.
            raise Evicted(f"what was streamed has changed ({self.why or 'other bits'}); start this worker again")
        tensors |= {name: tensor.clone() for name, tensor in streamed.items()}
