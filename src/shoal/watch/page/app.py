"""The addresses of the page: its files, the JSON API, a stream of changes, and the controls. See docs/watch.md."""

import asyncio
import contextlib
import importlib.util
import signal
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from shoal.core import clock
from shoal.core.errors import ShoalError
from shoal.launch.live_runs import RunNotice
from shoal.launch.run_requests import ScaleRequest, SwitchRequest, write_request
from shoal.plan.plan import Plan
from shoal.serve.serving_notice import servers_of
from shoal.watch.page import views
from shoal.watch.page.agreement import agreement
from shoal.watch.page.catalog import RunCatalog
from shoal.watch.page.launching import RunLauncher, json_answer, read_form
from shoal.watch.page.prometheus import metrics_text
from shoal.watch.page.registered import send_weights
from shoal.watch.page.run_state import RunState
from shoal.watch.page.security import AccessGuard
from shoal.watch.scaling import add_workers, remove_workers
from shoal.watch.switching import check_request
from shoal.watch.worker_logs import read_log

STATIC = Path(__file__).with_name("static")
POLL = 0.25
"""Seconds between two looks at the files of a run that somebody watches."""
# Short, because one event loop reads records and answers all requests.
SLICE, FIRST = 0.05, 0.6
"""Seconds of reading at once, and before the first answer."""
KEEP_ALIVE = 10.0
LONGEST_TIMELINE = 600.0
MOST_COMPARED = 12

View = Callable[[RunState], Any]


class WatchApp:
    """Answers requests about the runs of one catalog."""

    def __init__(self, catalog: RunCatalog, launcher: RunLauncher | None) -> None:
        self.catalog, self.launcher = catalog, launcher

    def build(self, token: str, names: tuple[str, ...] = ()) -> Starlette:
        run = "/api/runs/{run}"
        routes = [
            Route("/", page),
            Route("/plotly.min.js", chart_code),
            Route("/metrics", self.metrics),
            Route("/api/runs", self.runs),
            Route("/api/compare", self.compare),
            Route("/api/stream", self.stream),
            Route(run, self.view(lambda state: views.overview(self.catalog, state))),
            Route(f"{run}/curves", self.view(views.curves)),
            Route(f"{run}/network", self.view(views.network)),
            Route(f"{run}/model", self.view(views.model)),
            Route(f"{run}/plan", self.view(views.plan_parts)),
            Route(f"{run}/agreement", self.view(agreement)),
            Route(f"{run}/timeline", self.timeline),
            Route(f"{run}/log", self.log),
            Route(f"{run}/evaluation", self.evaluation),
            Route(f"{run}/weights", self.weights),
            Route(f"{run}/stop", self.stop, methods=["POST"]),
            Route(f"{run}/switch", self.switch, methods=["POST"]),
            Route(f"{run}/scale", self.scale, methods=["POST"]),
            *(self.launcher.routes() if self.launcher is not None else ()),
            Mount("/static", StaticFiles(directory=STATIC)),
        ]
        guard = Middleware(AccessGuard, token=token, names=names)
        refusals: dict[Any, Any] = {HTTPException: _refused, ShoalError: _refused}
        return Starlette(routes=routes, middleware=[guard], exception_handlers=refusals)

    def folder(self, name: str) -> Path:
        found = self.catalog.folder(name)
        if found is None:
            raise HTTPException(404, f"no run {name[:80]!r} here; /api/runs lists them")
        return found

    async def state(self, name: str) -> RunState:
        """The run, read as far as a first answer can wait for."""
        state = self.catalog.state(self.folder(name))
        state.live = self.catalog.notice(state.dir) is not None
        deadline = clock.now() + FIRST
        while True:
            state.read(SLICE)
            if state.caught_up or clock.now() > deadline:
                return state
            # Other requests are answered between two slices.
            await asyncio.sleep(0)

    def view(self, make: View) -> Callable[[Request], Any]:
        async def answer(request: Request) -> Response:
            return json_answer(make(await self.state(request.path_params["run"])))

        return answer

    async def runs(self, request: Request) -> Response:
        return json_answer({"runs": self.catalog.rows(), "can_launch": self.launcher is not None})

    async def compare(self, request: Request) -> Response:
        # Bounded, because each run that is compared is read.
        names = request.query_params.getlist("run")[:MOST_COMPARED]
        found = {name: views.curves(await self.state(name)) for name in names}
        return json_answer({"runs": found})

    async def timeline(self, request: Request) -> Response:
        seconds = min(_number(request, "seconds", 60.0), LONGEST_TIMELINE)
        return json_answer(views.timeline(await self.state(request.path_params["run"]), seconds))

    async def log(self, request: Request) -> Response:
        after = _number(request, "after", -1.0)
        rank = int(_number(request, "worker", 0.0))
        folder = self.folder(request.path_params["run"])
        lines, end = read_log(folder, rank, int(after) if after >= 0 else None)
        return json_answer({"worker": rank, "lines": lines, "end": end})

    async def weights(self, request: Request) -> Response:
        return await send_weights(self.folder(request.path_params["run"]))

    async def evaluation(self, request: Request) -> Response:
        path = self.folder(request.path_params["run"]) / "evaluation.json"
        try:
            return Response(path.read_bytes(), media_type="application/json")
        except OSError:
            raise HTTPException(404, "this run left no evaluation") from None

    async def stop(self, request: Request) -> Response:
        """As `shoal stop`: the workers take a checkpoint and end."""
        notice = self.catalog.notice(self.folder(request.path_params["run"]))
        # SIGCONT too: a launcher that was stopped acts on SIGTERM only when it goes on.
        if notice is None or not notice.launcher.send(signal.SIGTERM, signal.SIGCONT):
            raise HTTPException(409, "the run is not live any more")
        return json_answer({"stopping": notice.run}, 202)

    async def switch(self, request: Request) -> Response:
        """As `shoal switch`: the run goes on by another plan from its next step boundary on."""
        wanted = (await read_form(request, SwitchRequest)).plan
        notice = self._live(request)
        plan = Plan.parse(wanted)  # a text, never a file: the token must not give access to this machine's files
        warnings = check_request(notice, plan)
        write_request(notice, SwitchRequest(plan=str(plan)))
        return json_answer({"asked": str(plan), "warnings": warnings}, 202)

    async def scale(self, request: Request) -> Response:
        """As `shoal scale`: workers are added, or leave after their step."""
        wanted = await read_form(request, ScaleRequest)
        notice = self._live(request)
        if bool(wanted.add) == bool(wanted.remove):
            raise HTTPException(400, 'nothing, or two things at once; send {"add": 1} or {"remove": [3]}')
        asked = add_workers(notice, wanted.add) if wanted.add else remove_workers(notice, wanted.remove)
        write_request(notice, asked)
        return json_answer({"add": asked.add, "remove": asked.remove}, 202)

    def _live(self, request: Request) -> RunNotice:
        notice = self.catalog.notice(self.folder(request.path_params["run"]))
        if notice is None:
            raise HTTPException(409, "the run is not live any more")
        return notice

    async def metrics(self, request: Request) -> Response:
        states = [self.catalog.state(path) for path in self.catalog.folders().values() if self.catalog.notice(path)]
        for state in states:
            state.read(SLICE)
        return Response(metrics_text(states), media_type="text/plain; version=0.0.4; charset=utf-8")

    async def stream(self, request: Request) -> Response:
        """Server-sent events: one `change` whenever there is something new, at most four a second."""
        name = request.query_params.get("run")
        state = await self.state(name) if name is not None else None
        return StreamingResponse(self._changes(request, state), media_type="text/event-stream")

    async def _changes(self, request: Request, state: RunState | None) -> AsyncIterator[bytes]:
        known, said = None, clock.now()
        while not await request.is_disconnected():
            version = self._version(state)
            if version != known:
                known, said = version, clock.now()
                yield b"event: change\ndata: " + msgspec.json.encode({"version": str(version)}) + b"\n\n"
            elif clock.now() - said > KEEP_ALIVE:
                said = clock.now()
                yield b": still here\n\n"
            await asyncio.sleep(POLL)

    def _version(self, state: RunState | None) -> object:
        if state is None:
            # Of what the list shows, so that runs that stand still cause no event.
            return hash(tuple((row.id, row.state, row.steps) for row in self.catalog.rows()))
        with contextlib.suppress(OSError, ShoalError):  # its folder may be removed while it is watched
            state.read(SLICE)
            notice, servers = self.catalog.notice(state.dir), hash(tuple(servers_of(state.dir)))
            if notice is None:
                return (state.version, servers)
            fates = tuple(slot.fate for slot in notice.slots)
            return (state.version, servers, notice.stopping, fates, notice.members, notice.room)
        return "gone"


async def page(request: Request) -> Response:
    return FileResponse(STATIC / "index.html", headers={"Cache-Control": "no-cache"})


async def chart_code(request: Request) -> Response:
    """Plotly's own file, as its wheel carries it."""
    found = importlib.util.find_spec("plotly")
    if found is None or found.origin is None:
        raise HTTPException(404, "plotly is not installed; install it with: pip install 'shoal[dashboard]'")
    path = Path(found.origin).with_name("package_data") / "plotly.min.js"
    return FileResponse(path, media_type="text/javascript", headers={"Cache-Control": "private, max-age=86400"})


async def _refused(request: Request, error: Exception) -> Response:
    status, words = (error.status_code, error.detail) if isinstance(error, HTTPException) else (400, str(error))
    return JSONResponse({"error": words}, status)


def _number(request: Request, name: str, default: float) -> float:
    text = request.query_params.get(name)
    try:
        return float(text) if text is not None else default
    except ValueError:
        raise HTTPException(400, f"{name}={text!r} is not a number") from None
