"""Training without code: a form's answers become `shoal run examples/classify.py …`, in a process of its own.

POST /api/uploads?name=…   a CSV, ARFF, NPZ or ZIP, streamed to the disk        GET /api/form      what may be chosen
POST /api/launch           the answers, as JSON                           GET /api/launches/ID  how it began
POST /api/runs/ID/resume   go on from its checkpoint, as `shoal run --resume`
"""

import asyncio
import os
import re
import secrets
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from shoal.core.errors import UsageError
from shoal.core.ids import check_id, new_id
from shoal.hosts.status_board import MOST_WORKERS
from shoal.launch.live_runs import live
from shoal.plan.plan import Plan
from shoal.plan.presets import PRESETS
from shoal.plan.rules import check
from shoal.train.checkpoint.manifest import listed
from shoal.watch.record import INFO

UPLOADS = ".uploads"
"""In the folder of runs; a name that no run can have."""
LARGEST_UPLOAD, LARGEST_OF_ALL = 256 << 20, 4 << 30
LARGEST_FORM = 1 << 16
MOST_LAUNCHED = 4
"""Runs of this server that may be live at a time."""

Form = TypeVar("Form", bound=msgspec.Struct)
SUFFIXES = (".csv", ".arff", ".npz", ".zip")
MODELS = ("mlp", "alexnet", "googlenet", "resnet18", "resnet50", "densenet", "lstm")
"""Those of examples/models that name a class of an image or a row."""
DATASETS = {"digits": "8x8 digits (scikit-learn)", "patterns": "ten patterns under noise (made up)"}
PLACES = (
    Path(__file__).with_name("examples"),  # an installed wheel
    Path(__file__).resolve().parents[4] / "examples",  # a source checkout
)


class LaunchForm(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the form asks."""

    source: Literal["builtin", "upload", "path"]
    data: Annotated[str, Meta(min_length=1, max_length=4096)]
    """A built-in set, the name that an upload was given, or a path on the server's machine."""
    model: Annotated[str, Meta(max_length=40)] = "mlp"
    plan: Annotated[str, Meta(max_length=1000)] = "allreduce, every(1)"
    workers: Annotated[int, Meta(ge=1, le=MOST_WORKERS)] = 2
    epochs: Annotated[int, Meta(ge=1, le=10_000)] = 5
    batch: Annotated[int, Meta(ge=1, le=65_536)] = 32
    label: Annotated[str, Meta(max_length=200)] = ""
    """Column of a CSV that holds the class; the last if left out."""
    name: Annotated[str, Meta(max_length=64)] = ""
    layers: Annotated[str, Meta(max_length=1 << 15)] = ""
    """A network as a TOML list of layers, in place of a model."""


@dataclass
class StartedRun:
    """A `shoal run` of this server."""

    process: "subprocess.Popen[bytes]"
    output: Path

    def describe(self, directory: Path) -> dict[str, Any]:
        code = self.process.poll()
        begun = (directory / INFO).exists()
        # A run that has begun tells of its end in its own record.
        if code and not begun:
            return {"state": "failed", "error": last_line(self.output)}
        return {"state": "running" if begun else "starting", "error": ""}


class RunLauncher:
    """Starts runs in the folder `root`. They go on when the page's server ends: `shoal stop` ends them."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.started: dict[str, StartedRun] = {}

    def routes(self) -> list[Route]:
        return [
            Route("/api/form", self.form),
            Route("/api/uploads", self.upload, methods=["POST"]),
            Route("/api/launch", self.launch, methods=["POST"]),
            Route("/api/launches/{run}", self.launched),
            Route("/api/runs/{run}/resume", self.resume, methods=["POST"]),
        ]

    async def form(self, request: Request) -> Response:
        found = examples_folder()
        return json_answer(
            {
                "available": found is not None,
                "datasets": DATASETS,
                "models": MODELS,
                "plans": {name: preset.text for name, preset in PRESETS.items()},
                "most_workers": min(MOST_WORKERS, max(2, 2 * (os.cpu_count() or 1))),
                "largest_upload": LARGEST_UPLOAD,
                "suffixes": SUFFIXES,
            }
        )

    async def upload(self, request: Request) -> Response:
        """Keep a file under a name of our own; its own name only tells what it holds."""
        suffix = Path(request.query_params.get("name", "")).suffix.lower()
        if suffix not in SUFFIXES:
            raise HTTPException(415, f"cannot read {suffix or 'a file without a suffix'!r}; give {', '.join(SUFFIXES)}")
        if _size(request.headers.get("content-length")) > LARGEST_UPLOAD:
            raise HTTPException(413, _too_large())
        folder = self.root / UPLOADS
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        # With room for the largest one, because the length that a client tells need not be true.
        if sum(path.stat().st_size for path in folder.iterdir()) + LARGEST_UPLOAD > LARGEST_OF_ALL:
            raise HTTPException(507, f"{folder} holds {LARGEST_OF_ALL >> 30} GB of uploads; remove those not needed")
        # Random, so that a name of the user's never becomes a path here.
        path = folder / f"{secrets.token_hex(8)}{suffix}"
        await self._keep(request, path)
        return json_answer({"data": path.name}, 201)

    async def _keep(self, request: Request, path: Path) -> None:
        size = 0
        try:
            with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                async for piece in request.stream():
                    size += len(piece)
                    if size > LARGEST_UPLOAD:
                        raise HTTPException(413, _too_large())
                    file.write(piece)
        except BaseException:
            path.unlink(missing_ok=True)
            raise

    async def launch(self, request: Request) -> Response:
        form = await read_form(request, LaunchForm)
        self._check_room()
        # In a thread: it writes files and starts a process, and one event loop answers all requests.
        name = await asyncio.to_thread(self.start, form)
        return json_answer({"run": name}, 202)

    def _check_room(self) -> None:
        living = [run for run in self.started.values() if run.process.poll() is None]
        if len(living) >= MOST_LAUNCHED:
            raise HTTPException(409, f"{len(living)} runs of this page are live; stop one first")

    async def resume(self, request: Request) -> Response:
        """Let a run of this folder that was stopped or killed go on; its own record says how it was started."""
        name = check_id(request.path_params["run"], "run")
        folder = self.root / name
        if not (folder / INFO).exists():
            raise HTTPException(404, f"no run {name!r} in {self.root}; /api/runs lists them")
        if any(Path(notice.dir).resolve() == folder.resolve() for notice in live()):
            raise HTTPException(409, f"run {name!r} is live; stop it first")
        if not listed(folder):
            raise HTTPException(409, f"run {name!r} left no checkpoint to go on from; start it again")
        self._check_room()
        self._start(name, ["run", "--resume", str(folder), "--quiet"])
        return json_answer({"run": name}, 202)

    def start(self, form: LaunchForm) -> str:
        """Check the answers and start the run; returns its id. UsageError says what is wrong."""
        examples = examples_folder()
        if examples is None:
            raise UsageError("the example models are not installed here; run the page from a source checkout")
        if form.model not in MODELS:
            raise UsageError(f"no model {form.model!r}; choose one of {', '.join(MODELS)}")
        # A text, never a file: the token must not give access to this machine's files.
        check(Plan.parse(form.plan), form.workers)
        # An id is never a path.
        name = check_id(form.name, "name") if form.name else new_id("form")
        if (self.root / name).exists():
            raise UsageError(f"run {name!r} exists already; choose another name")
        words = ["run", "--name", name, "--runs", str(self.root), "--workers", str(form.workers), "--plan", form.plan]
        words += ["--quiet", str(examples / "classify.py"), "--data", self._data(form), "--model", form.model]
        words += ["--epochs", str(form.epochs), "--batch", str(form.batch), "--label", form.label]
        if form.layers:
            words += ["--layers", str(self._keep_layers(name, form.layers))]
        self._start(name, words)
        return name

    def _keep_layers(self, name: str, text: str) -> Path:
        """The run reads them, and says what is wrong with them."""
        folder = self.root / UPLOADS
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        path = folder / f"{name}.toml"
        path.write_text(text)
        return path

    def _start(self, name: str, words: list[str]) -> None:
        """In a session of its own: it goes on when this server ends."""
        (self.root / UPLOADS).mkdir(parents=True, exist_ok=True, mode=0o700)
        output = self.root / UPLOADS / f"{name}.out"
        with output.open("wb") as file:
            self.started[name] = StartedRun(
                subprocess.Popen(
                    [sys.executable, "-m", "shoal", *words],
                    stdin=subprocess.DEVNULL,
                    stdout=file,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                ),
                output,
            )

    def _data(self, form: LaunchForm) -> str:
        if form.source == "builtin":
            if form.data not in DATASETS:
                raise UsageError(f"no built-in set {form.data!r}; there are {', '.join(DATASETS)}")
            return form.data
        if form.source == "upload":
            # Only names that this page has made: no path leads out of the folder.
            if not re.fullmatch(r"[0-9a-f]{16}\.(csv|arff|npz|zip)", form.data):
                raise UsageError(f"{form.data!r} is no upload of this page; upload the file again")
            path = self.root / UPLOADS / form.data
        else:
            path = Path(form.data).expanduser()
        if not path.exists():
            raise UsageError(
                f"nothing at {form.data!r} on this machine; give a CSV, an ARFF, an NPZ or a folder of images"
            )
        return str(path.absolute())

    async def launched(self, request: Request) -> Response:
        name = request.path_params["run"]
        run = self.started.get(name)
        if run is None:
            raise HTTPException(404, f"this page has started no run {name[:80]!r}")
        return json_answer(run.describe(self.root / name))


def examples_folder() -> Path | None:
    """Where `classify.py` and the models are."""
    return next((place for place in PLACES if (place / "classify.py").is_file()), None)


def last_line(path: Path) -> str:
    """Why a command failed: the last thing it said."""
    try:
        lines = path.read_text(errors="replace")[-65536:].strip().splitlines()
    except OSError:
        lines = []
    return lines[-1] if lines else "it ended without a word"


def _too_large() -> str:
    return f"a file of more than {LARGEST_UPLOAD >> 20} MB is refused; give its path on this machine instead"


def _size(text: str | None) -> int:
    # 0 where no length is announced; `_keep` counts what really comes.
    return int(text) if text is not None and text.isdigit() else 0


async def read_form(request: Request, kind: type[Form]) -> Form:
    """The body as one of ours; refused with 413 if it is long, with 400 if it is another."""
    body = b""
    async for piece in request.stream():
        # Read in pieces, so that a body that does not end is refused instead of kept.
        body += piece
        if len(body) > LARGEST_FORM:
            raise HTTPException(413, f"a form of more than {LARGEST_FORM} bytes is refused")
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.MsgspecError as error:
        raise HTTPException(400, f"the form is not right: {error}") from None


def json_answer(value: Any, status: int = 200) -> Response:
    """What is no number in `value` becomes null."""
    return Response(msgspec.json.encode(value), status, media_type="application/json")
