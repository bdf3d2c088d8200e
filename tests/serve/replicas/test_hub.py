"""A hub and replicas over real sockets: programs go out, batches come back, and nobody is believed unchecked."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec
import numpy as np
import pytest
import zmq
from served import onnx_file

from shoal.core.errors import UsageError
from shoal.core.version import __version__
from shoal.membership.coordinator_socket import CoordinatorSocket
from shoal.membership.credentials import ClientCredentials, ServerCredentials
from shoal.serve.errors import LoadRefused, RequestError
from shoal.serve.programs import OnnxLoader
from shoal.serve.replicas import protocol
from shoal.serve.replicas.hub import ReplicaHub
from shoal.serve.replicas.loader import ReplicatedLoader, ReplicatedServable
from shoal.serve.replicas.protocol import LARGEST_MESSAGE, AnswerPiece, BatchPiece, HeldProgram, ReplicaNews
from shoal.serve.replicas.worker import ReplicaIdentity, ReplicaWorker
from shoal.transport.keys import CurveKeyPair

WAIT = 60.0


class LeaveError(Exception):
    """Ends a replica that runs in a thread."""


class HubRig:
    """A hub, and replicas as threads of this process."""

    def __init__(self, folder: Path) -> None:
        self.pair, self.guest = CurveKeyPair.new(), CurveKeyPair.new()
        self.lines: list[str] = []
        lock = ServerCredentials(self.pair, {self.guest.public: 1})
        self.opened: list[CoordinatorSocket] = []

        def open_socket() -> CoordinatorSocket:
            self.opened.append(CoordinatorSocket("tcp://127.0.0.1:*", lock, LARGEST_MESSAGE, most_unsent=0))
            return self.opened[0]

        self.hub = ReplicaHub(open_socket, folder, self.lines.append)
        self.hub.start()
        self.address = self.opened[0].address
        self.key = ClientCredentials(self.guest, self.pair.public)

    @contextmanager
    def replica(self, name: str) -> Iterator[None]:
        over = threading.Event()

        def check() -> None:
            if over.is_set():
                raise LeaveError

        def run() -> None:
            with suppress(LeaveError):
                ReplicaWorker(self.address, self.key, ReplicaIdentity(name), check).run()

        thread = threading.Thread(target=run)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join(WAIT)

    def soon(self, what: Callable[[], bool]) -> None:
        limit = time.monotonic() + WAIT
        while not what():
            assert time.monotonic() < limit, self.lines
            time.sleep(0.01)


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[HubRig]:
    (tmp_path / "held").mkdir()
    found = HubRig(tmp_path / "held")
    yield found
    found.hub.close()


def loader(path: Path, rig: HubRig) -> ReplicatedLoader:
    return ReplicatedLoader(OnnxLoader(path, path.stat().st_size), rig.hub)


def doubled(servable: object, rows: int = 3) -> bool:
    assert isinstance(servable, ReplicatedServable)
    given = np.arange(rows * 2, dtype=np.float32).reshape(rows, 2)
    return bool(np.array_equal(servable.submit({"x": given}).result(WAIT)["y"], 2 * given))


def test_a_program_in_many_pieces_is_loaded_asked_and_let_go(rig: HubRig, tmp_path: Path) -> None:
    path = onnx_file(tmp_path / "m.onnx", 2.0, width=200, weights=80_000)
    assert path.stat().st_size > 4 * protocol.PIECE
    with rig.replica("a"):
        own = loader(path, rig)
        servable = own.load()
        assert isinstance(servable, ReplicatedServable)
        assert (servable.inputs[0].shape, servable.width) == ((-1, 200), 1)
        given = np.full((400, 200), 1.5, np.float32)  # several pieces each way
        assert np.allclose(servable.predict({"x": given})["y"], 3.0, atol=1e-3)
        with rig.replica("b"):  # comes later, and gets what there is
            rig.soon(lambda: servable.width == 2)
        rig.soon(lambda: servable.width == 1)
        own.unload()
        assert list((tmp_path / "held").iterdir()) == []


def test_an_error_of_the_model_is_the_answer_and_no_loss(rig: HubRig, tmp_path: Path) -> None:
    with rig.replica("a"):
        servable = loader(onnx_file(tmp_path / "m.onnx"), rig).load()
        with pytest.raises(RequestError, match="has shape"):
            servable.predict({"x": np.zeros((1, 3), np.float32)})
        assert doubled(servable)


def test_a_program_that_no_replica_can_load_is_refused(rig: HubRig, tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(b"no program")
    with rig.replica("a"), pytest.raises(LoadRefused, match="is no ONNX file"):
        loader(tmp_path / "m.onnx", rig).load()


class Liar:
    """A peer with a good key that says what it likes."""

    def __init__(self, rig: HubRig, name: str = "liar") -> None:
        self.context, self.name = zmq.Context(), name
        self.socket = self.context.socket(zmq.DEALER)
        self.socket.curve_serverkey, self.socket.rcvtimeo = rig.pair.public, int(WAIT * 1000)
        self.socket.curve_publickey, self.socket.curve_secretkey = rig.guest.public, rig.guest.secret
        self.socket.connect(rig.address)

    def say(self, word: msgspec.Struct, data: bytes = b"") -> None:
        self.socket.send_multipart([msgspec.msgpack.encode(word), data])

    def state(self, *held: HeldProgram, version: str = __version__) -> None:
        self.say(ReplicaNews(self.name, version, 1, held))

    def hear(self, kind: type) -> msgspec.Struct:
        """The next word of a kind; it keeps saying that it lives."""
        while True:
            word = protocol.decode_server_word.decode(self.socket.recv_multipart()[0])
            if isinstance(word, kind):
                return word

    def close(self) -> None:
        self.context.destroy(linger=0)


@pytest.fixture
def liar(rig: HubRig) -> Iterator[Liar]:
    found = Liar(rig)
    yield found
    found.close()


def lies(batch: BatchPiece) -> list[tuple[msgspec.Struct, bytes]]:
    """Answers to a batch of two samples that no honest replica gives."""
    short = protocol.pack_tensors({"y": np.zeros((2, 5), np.float32)})
    named = protocol.pack_tensors({"z": np.zeros((2, 2), np.float32)})
    return [
        (AnswerPiece(batch.batch, 0, len(short)), short),
        (AnswerPiece(batch.batch, 0, len(named)), named),
        (AnswerPiece(batch.batch, 0, 6), b"\xff\xff\xff\xff{}"),
        (AnswerPiece(batch.batch, 8, 100), b"later"),
        (AnswerPiece(batch.batch, 0, 2), b"longer than said"),
    ]


@pytest.mark.parametrize("lie", range(5))
def test_a_replica_that_lies_is_refused_and_its_batch_goes_to_another(
    rig: HubRig, liar: Liar, tmp_path: Path, lie: int
) -> None:
    with rig.replica("a"):
        servable = loader(onnx_file(tmp_path / "m.onnx"), rig).load()
        assert isinstance(servable, ReplicatedServable)
        liar.state()
        wanted = liar.hear(protocol.WantedPrograms)
        assert isinstance(wanted, protocol.WantedPrograms)
        serial = wanted.programs[0].serial
        specs = protocol.specs_to_wire(servable.inputs), protocol.specs_to_wire(servable.outputs)
        liar.state(HeldProgram(serial, *specs))
        rig.soon(lambda: servable.width == 2)
        given = {"x": np.ones((2, 2), np.float32)}
        answers = [servable.submit(given) for _ in range(8)]
        batch = liar.hear(BatchPiece)
        assert isinstance(batch, BatchPiece)
        liar.say(*lies(batch)[lie])
        assert [answer.result(WAIT)["y"].tolist() for answer in answers] == [[[2.0, 2.0], [2.0, 2.0]]] * 8
        assert "broke the protocol" in str(liar.hear(protocol.RefuseReplica))
        assert any("replica liar is lost: it broke the protocol" in line for line in rig.lines)


def test_another_version_of_shoal_is_refused(rig: HubRig, liar: Liar) -> None:
    liar.state(version="0.0.0\x1b[2J")
    refused = str(liar.hear(protocol.RefuseReplica))
    assert "it has Shoal 0.0.0" in refused
    assert rig.hub.names == []


def test_a_stranger_is_not_heard(rig: HubRig, liar: Liar) -> None:
    stranger = Liar.__new__(Liar)
    rig.guest = CurveKeyPair.new()
    stranger.__init__(rig, "stranger")  # type: ignore[misc]
    stranger.state()
    liar.state()
    rig.soon(lambda: rig.hub.names == ["liar"])
    assert not stranger.socket.poll(300)
    stranger.close()


def test_a_replica_that_the_server_refuses_says_why_and_ends(rig: HubRig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.serve.replicas.worker.__version__", "0.0.1")
    worker = ReplicaWorker(rig.address, rig.key, ReplicaIdentity("old"))
    with pytest.raises(UsageError, match=r"refuses this replica: it has Shoal 0\.0\.1"):
        worker.run()
