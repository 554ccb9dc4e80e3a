"""The routes of the console."""

import time
from collections.abc import Awaitable, Callable
from functools import partial
from importlib.metadata import version
from pathlib import Path

import anyio.to_thread
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from holdfast_core.model import CoreState
from holdfast_daemon.console.actions import Actions
from holdfast_daemon.console.live_feeds import MOST_PAGES, LiveFeeds
from holdfast_daemon.console.pages import incident_pages, past_runs
from holdfast_daemon.console.pages.checkpoint_pages import checkpoint_list
from holdfast_daemon.console.pages.holdfast_page import holdfast_page
from holdfast_daemon.console.pages.run_frame import refusals, stale_text
from holdfast_daemon.console.ranks import generation_logs, rank_page
from holdfast_daemon.console.ranks.own_step_times import SingleRankTimes
from holdfast_daemon.console.ranks.rank_cells import COLOURS, MOST_CELLS, RankCells
from holdfast_daemon.console.ranks.taken_stacks import TakenStacks
from holdfast_daemon.console.serving.answers import (
    Handler,
    body_fields,
    contained,
    file_answer,
    http_error,
    json_answer,
    number_of_query,
    refusal,
)
from holdfast_daemon.console.serving.request_guard import RefusedRequestError
from holdfast_daemon.console.serving.sessions import OPERATOR, Sessions
from holdfast_daemon.console.serving.static_files import StaticFolder
from holdfast_daemon.console.serving.streams import Feed
from holdfast_daemon.console.watched import WatchedDaemon, WatchedRun
from holdfast_daemon.control.rank_pages import RankSearch
from holdfast_daemon.history.history_tables import LOGGED
from holdfast_proto import keys, run_files
from holdfast_proto.limits import MOST_RANKS, STOP_GRACE_S

STATIC = Path(__file__).parent / "static"
LOG_BYTES = 20_000


class Console:
    """Answers the requests about one daemon."""

    def __init__(self, watched: WatchedDaemon, sessions: Sessions, port: int) -> None:
        self._watched = watched
        self._sessions = sessions
        self._cookie = f"holdfast_{port}"
        self._port = port
        self._stacks = TakenStacks(watched.clock.now)
        self._own_times = SingleRankTimes()
        self._actions = Actions(watched.loop, self._stacks)
        self._static = StaticFolder(STATIC)
        self.feeds = LiveFeeds(watched)

    def app(self) -> Starlette:
        """Return the application, without the guard."""
        run, incident = "/api/runs/{run}", "/api/runs/{run}/incidents/{incident}"
        reading: dict[str, Callable[[Request], Awaitable[Response]]] = {
            "/api/session": self._session,
            "/api/runs": self._runs,
            "/api/stream": self._runs_stream,
            "/api/past": self._past,
            "/api/holdfast": self._holdfast,
            run: self._run,
            f"{run}/stream": self._run_stream,
            f"{run}/curves": self._curves,
            f"{run}/ranks": self._ranks,
            f"{run}/ranks/stream": self._ranks_stream,
            f"{run}/ranks/{{rank:int}}": self._rank,
            f"{run}/ranks/{{rank:int}}/log": self._rank_log,
            f"{run}/incidents": self._incidents,
            incident: self._incident,
            f"{incident}/evidence/{{name:path}}": self._evidence,
            f"{incident}/archive": self._archive,
            f"{run}/checkpoints": self._checkpoints,
        }
        return Starlette(
            routes=[
                Route("/api/login", contained(self._login), methods=["POST"]),
                Route("/api/logout", contained(self._logout), methods=["POST"]),
                *(Route(path, self._reader(handler), methods=["GET"]) for path, handler in reading.items()),
                Route(f"{run}/actions/{{action}}", contained(self._act), methods=["POST"]),
                Route("/{path:path}", contained(self._file), methods=["GET"]),
            ],
            exception_handlers={HTTPException: http_error, RefusedRequestError: refusal},
        )

    # Sessions

    def _role(self, request: Request) -> str:
        """Return the role of who asks. Raises RefusedRequestError."""
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and token:
            role = self._sessions.role_of_token(token.strip())
        else:
            role = self._sessions.role_of_session(request.cookies.get(self._cookie, ""))
        if role is None:
            raise RefusedRequestError(401, "log in with the address that `holdfast console` prints")
        return role

    def _reader(self, handler: Handler) -> Handler:
        async def checked(request: Request) -> Response:
            self._role(request)
            return await handler(request)

        return contained(checked)

    async def _login(self, request: Request) -> Response:
        fields = await body_fields(request)
        token = fields.get("token")
        opened = self._sessions.login(token) if isinstance(token, str) else None
        if opened is None:
            if self._sessions.is_guessed:
                raise RefusedRequestError(401, "too many wrong tokens: wait a minute")
            raise RefusedRequestError(
                401, "this token is not one of this daemon: `holdfast console` prints the address"
            )
        role, name = opened
        answer = json_answer({"role": role})
        # Without a path, a browser sends it to where it logged in: `/api`, or `/PREFIX/api` behind a proxy.
        secure = request.url.scheme == "https"
        answer.set_cookie(self._cookie, name, path=None, secure=secure, httponly=True, samesite="strict")
        return answer

    async def _logout(self, request: Request) -> Response:
        self._sessions.logout(request.cookies.get(self._cookie, ""))
        answer = json_answer({})
        answer.set_cookie(self._cookie, "", max_age=0, path=None, httponly=True, samesite="strict")
        return answer

    async def _session(self, request: Request) -> Response:
        options = self._watched.options
        console = {"port": self._port, "pages_open": self.feeds.pages, "pages_most": MOST_PAGES}
        here = time.localtime(self._watched.clock.now())
        about = {
            "version": version("holdfast-torch"),
            "daemon": options.name,
            "console": console,
            "stop_grace_s": STOP_GRACE_S,
            "zone": {"name": here.tm_zone, "offset_s": here.tm_gmtoff},
            "ended": self._watched.ended,
        }
        return json_answer({"role": self._role(request), **about})

    # Runs

    def _watched_run(self, request: Request) -> WatchedRun:
        name = request.path_params["run"]
        run = dict(self._watched.runs).get(name)
        if run is None:
            raise RefusedRequestError(404, f"this daemon knows no run {name[:80]!r}")
        return run

    def _state(self, request: Request) -> CoreState:
        run = self._watched_run(request)
        if run.state is None:
            raise RefusedRequestError(503, f"nothing is known of run {run.run_name} yet: try again")
        return run.state

    async def _runs(self, _: Request) -> Response:
        return json_answer(self.feeds.list_of_runs())

    async def _runs_stream(self, _: Request) -> Response:
        return self._stream(self.feeds.runs())

    async def _run(self, request: Request) -> Response:
        return json_answer(self.feeds.frame(self._watched_run(request)))

    async def _run_stream(self, request: Request) -> Response:
        return self._stream(self.feeds.run(self._watched_run(request).run_name))

    def _stream(self, feed: Feed) -> Response:
        if self.feeds.pages >= MOST_PAGES:
            raise RefusedRequestError(503, f"{MOST_PAGES} streams are open, which is the most: close a page")
        return StreamingResponse(feed.stream(), media_type="text/event-stream")

    async def _curves(self, request: Request) -> Response:
        name = request.path_params["run"]
        _check_name(name)
        query = request.query_params
        run = dict(self._watched.runs).get(name)
        current = run.state.spec.instance if run is not None and run.state is not None else ""
        names = [one for one in query.get("names", "").split(",") if one]
        names += [LOGGED + one for one in query.getlist("logged")]
        until = number_of_query(request, "until", -1)
        load = partial(
            past_runs.curves,
            self._watched.options.directory,
            name,
            names or ["loss"],
            query.get("instance") or current,
            points=number_of_query(request, "points", 1000),
            since=number_of_query(request, "since", 0),
            until=None if until < 0 else until,
        )
        return json_answer(await anyio.to_thread.run_sync(load))

    async def _past(self, _: Request) -> Response:
        runs = {name: run.state for name, run in dict(self._watched.runs).items()}
        current = {name: state.spec.instance for name, state in runs.items() if state is not None}
        return json_answer(
            await anyio.to_thread.run_sync(past_runs.past_runs, self._watched.options.directory, current)
        )

    async def _holdfast(self, _: Request) -> Response:
        return json_answer(holdfast_page(self._watched, self.feeds.pages))

    # Ranks

    async def _ranks(self, request: Request) -> Response:
        run, state = self._watched_run(request), self._state(request)
        reader = self.feeds.reader(run.run_name)
        frame = RankCells(reader, *_rank_page(request)).frame(state)
        return json_answer({**frame, "stale": stale_text(run, reader.table(state))})

    async def _ranks_stream(self, request: Request) -> Response:
        self._state(request)
        return self._stream(self.feeds.ranks(self._watched_run(request).run_name, *_rank_page(request)))

    async def _rank(self, request: Request) -> Response:
        run, state, number = self._watched_run(request), self._state(request), request.path_params["rank"]
        requested = self._stacks.newest(run.run_name, number)
        table = self.feeds.reader(run.run_name).table(state)
        badge = rank_page.rank_badge(table, number)
        read = partial(
            rank_page.rank_details, state, number, self._incident_folder(request), self._own_times, requested
        )
        details = await anyio.to_thread.run_sync(read)
        stale = stale_text(run, table)
        return json_answer({**details, **badge, "stacks_refused": refusals(run)["stacks"], "stale": stale})

    async def _rank_log(self, request: Request) -> Response:
        generation = number_of_query(request, "generation", 0) if "generation" in request.query_params else None
        tail = partial(
            generation_logs.log_tail,
            self._state(request),
            request.path_params["rank"],
            self._watched.options.directory,
            number_of_query(request, "bytes", LOG_BYTES),
            generation,
            ended=self._watched.ended,
        )
        return json_answer(await anyio.to_thread.run_sync(tail))

    # Incidents and checkpoints

    def _incident_folder(self, request: Request) -> Path:
        return run_files.incidents(self._watched.options.directory, self._watched_run(request).run_name)

    async def _incidents(self, request: Request) -> Response:
        return json_answer(incident_pages.incident_list(self._watched_run(request).state))

    async def _incident(self, request: Request) -> Response:
        state = self._state(request)
        incident = incident_pages.find_incident(state, request.path_params["incident"])
        folder = self._incident_folder(request) / incident.id
        return json_answer(await anyio.to_thread.run_sync(incident_pages.story, state, incident, folder))

    async def _evidence(self, request: Request) -> Response:
        incident = incident_pages.find_incident(self._state(request), request.path_params["incident"])
        name = request.path_params["name"]
        folder = self._incident_folder(request) / incident.id
        file = await anyio.to_thread.run_sync(incident_pages.open_listed, folder, name)
        wanted = request.query_params.get("download") == "1"
        return file_answer(file, "text/plain; charset=utf-8", name.rpartition("/")[2] if wanted else "")

    async def _archive(self, request: Request) -> Response:
        incident = incident_pages.find_incident(self._state(request), request.path_params["incident"])
        folder = self._incident_folder(request) / incident.id
        file = await anyio.to_thread.run_sync(incident_pages.archive, incident, folder)
        return file_answer(file, "application/gzip", f"{incident.run}-{incident.id}.tar.gz")

    async def _checkpoints(self, request: Request) -> Response:
        state, directory = self._state(request), self._watched.options.directory
        return json_answer(await anyio.to_thread.run_sync(checkpoint_list, state, directory))

    async def _act(self, request: Request) -> Response:
        if self._role(request) != OPERATOR:
            raise RefusedRequestError(403, "a viewer cannot do this: log in with the operator's address")
        run, fields = self._watched_run(request), await body_fields(request)
        return json_answer({"done": await self._actions.carry_out(request.path_params["action"], run, fields)})

    # Files

    async def _file(self, request: Request) -> Response:
        path = request.path_params["path"]
        if path == "api" or path.startswith("api/"):
            raise RefusedRequestError(404, f"there is no /{path[:80]}")
        return self._static.answer(path, request.headers.get("if-none-match", ""))


def _rank_page(request: Request) -> tuple[str, str, int]:
    """Return the colour of a page of ranks, what is searched for, and how many ranks are before the page."""
    colour = request.query_params.get("colour", COLOURS[0])
    if colour not in COLOURS:
        raise RefusedRequestError(400, f"there is no colour {colour[:40]!r}: use {', '.join(COLOURS)}")
    search, page = request.query_params.get("search", "").strip(), number_of_query(request, "page", 1)
    if not 1 <= page <= MOST_RANKS:
        raise RefusedRequestError(400, f"page is {page}: use 1 to {MOST_RANKS}")
    try:
        RankSearch(search)
    except ValueError as error:
        raise RefusedRequestError(400, str(error)) from None
    return colour, search, min(MOST_CELLS * (page - 1), MOST_RANKS)


def _check_name(run: str) -> None:
    try:
        keys.check_run_name(run)
    except ValueError as error:
        raise RefusedRequestError(400, str(error)) from None
