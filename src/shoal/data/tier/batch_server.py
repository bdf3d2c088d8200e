"""A data server: answers requests for batches, in the order in which they come, in one thread.

It holds no state of the run: no order of samples, no ledger, no parameters. So it may be killed at any moment, and any
other process that has the script can answer in its place.
"""

import time
import traceback
from collections.abc import Sequence

import msgspec

from shoal.core.errors import UsageError
from shoal.data.tier.batch_format import DamagedBatchError, UnsendableError, decode_batch, encode_batch
from shoal.data.tier.messages import LONGEST_TEXT, BatchAnswer, BatchRequest, decode_request, encode_head
from shoal.data.tier.preparing import BatchPreparer, SampleError
from shoal.membership.coordinator_socket import CoordinatorSocket
from shoal.membership.credentials import ServerCredentials

Frames = list[bytes | bytearray | memoryview]
LARGEST_REQUEST = 8 << 20
LOOK = 1.0


class BatchServer:
    """Of one process, without a socket."""

    def __init__(self, loaders: Sequence[BatchPreparer]) -> None:
        self._loaders = loaders

    def answer(self, frames: Sequence[bytes | memoryview]) -> Frames | None:
        """Return the answer to a request; None if the frames are none."""
        if len(frames) != 3:
            return None
        try:
            request = decode_request(frames[0])
            indices = decode_batch(bytes(frames[1]), memoryview(frames[2]))
        except (msgspec.MsgspecError, UnicodeDecodeError, DamagedBatchError):
            return None
        began = time.perf_counter()
        try:
            preparer = self._find(request)
            batch = preparer.prepare(request.key, indices)
            content = encode_batch(batch)
        except SampleError as error:
            return [encode_head(_raised(request, error)), b"", b""]
        except UnsendableError as error:
            return [encode_head(BatchAnswer(request.number, 0.0, "refused", text=_cut(str(error)))), b"", b""]
        except UsageError as error:
            return [encode_head(BatchAnswer(request.number, 0.0, "unknown", text=_cut(str(error)))), b"", b""]
        return [encode_head(BatchAnswer(request.number, time.perf_counter() - began)), *content]

    def _find(self, request: BatchRequest) -> BatchPreparer:
        if request.loader >= len(self._loaders):
            raise UsageError(f"it has joined {len(self._loaders)} loaders, and this is number {request.loader}")
        preparer = self._loaders[request.loader]
        if preparer.items != request.items:
            raise UsageError(f"its dataset has {preparer.items} samples, the worker's has {request.items}")
        return preparer


def _raised(request: BatchRequest, error: SampleError) -> BatchAnswer:
    cause = error.__cause__ or error
    text = traceback.format_exception(cause)
    return BatchAnswer(
        request.number,
        0.0,
        "raised",
        error.sample[:200],
        type(cause).__name__[:100],
        _cut(str(cause)),
        _cut("".join(text)),
    )


def _cut(text: str) -> str:
    """Text of bearable length, without halves of letters."""
    # its end, where a traceback says what was raised
    return text.encode("utf-8", "backslashreplace").decode()[-LONGEST_TEXT:]


def serve_batches(address: str, lock: ServerCredentials | None, loaders: Sequence[BatchPreparer]) -> None:
    """Serve at `ipc://FILE`, or under keys at `tcp://HOST:PORT`, for as long as the process lives."""
    server, socket = BatchServer(loaders), CoordinatorSocket(address, lock, LARGEST_REQUEST)
    while True:
        socket.wait(LOOK)
        for message in socket.messages():
            if (answer := server.answer(message.frames)) is not None:
                socket.send(message.sender, answer)
