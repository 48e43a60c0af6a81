"""The application: the page's files, and the HTTP interface that the page itself uses.

``POST /api/fit`` takes a support set and answers with the id of a task; ``POST /api/predict`` takes that id and what is
to be predicted. Nothing is trained. Every error is a status and ``{"detail": "a sentence"}``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from fastapi import Body, FastAPI, HTTPException, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException as StarletteHTTPException
from starlette.staticfiles import StaticFiles

from metavrf.errors import UserError
from metavrf.serve import models
from metavrf.serve.guard import MOST_BYTES, Guard
from metavrf.serve.models import Curve, Curves, CurveTask, Drawings, DrawingTask
from metavrf.serve.store import Store
from metavrf.serve.worker import BusyError, Worker

STATIC = Path(__file__).parent / "static"
MOST_TASKS = 256  # held at a time
LIFE = 3600.0  # seconds after its last use that a task is held
MOST_WAITING = 64  # requests of one client that compute or wait to
MOST_OF_ALL = 256  # of all clients

Item = TypeVar("Item")
ROWS = Field(fail_fast=True)  # one error is enough: a list of a million would block the server
Picture = Annotated[
    str | Annotated[list[Annotated[list[int], ROWS]], ROWS],
    Field(description="A PNG file in base64 (dark ink on light paper), or rows of numbers: 0 paper, 255 ink."),
]
Pictures = Annotated[list[Picture], Field(fail_fast=True, min_length=1, max_length=models.MOST_PICTURES)]
Number = Annotated[float, Field(ge=-1e6, le=1e6, allow_inf_nan=False)]
TaskId = Annotated[str, Field(max_length=64, description="The id that /api/fit gave.")]


class Strict(BaseModel):
    """Refuses fields that it does not know, so that a misspelt one is not lost."""

    model_config = ConfigDict(extra="forbid")


class Samples(Strict):
    """A class by its name, and its drawings."""

    name: Annotated[str, Field(min_length=1, max_length=40)]
    pictures: Pictures


class DrawingFit(Strict):
    """The support set of a task on drawings; with ``task``, in place of what that task held."""

    kind: Literal["drawing"]
    task: TaskId | None = None
    classes: Annotated[list[Samples], Field(fail_fast=True, min_length=2, max_length=models.MOST_CLASSES)]


class CurveFit(Strict):
    """The points of a curve, (x, y) each; with ``task``, in place of what that task held."""

    kind: Literal["curve"]
    task: TaskId | None = None
    points: Annotated[list[tuple[Number, Number]], Field(fail_fast=True, min_length=1, max_length=models.MOST_POINTS)]


class DrawingQuery(Strict):
    """Drawings to classify."""

    kind: Literal["drawing"]
    task: TaskId
    pictures: Pictures


class CurveQuery(Strict):
    """Where on the curve to predict."""

    kind: Literal["curve"]
    task: TaskId
    x: Annotated[list[Number], Field(fail_fast=True, min_length=1, max_length=models.MOST_QUERIES)]


Fit = Annotated[DrawingFit | CurveFit, Body(discriminator="kind")]
Query = Annotated[DrawingQuery | CurveQuery, Body(discriminator="kind")]


class Fitted(BaseModel):
    """The id of the task and what it holds: the shots by class, or the number of points."""

    task: str
    shots: dict[str, int] | int
    expires_after: Annotated[float, Field(description="Seconds without use.")] = LIFE


class Answer(BaseModel):
    """The likeliest class of a drawing, and the probability of each."""

    best: str
    probabilities: dict[str, float]


class DrawingAnswers(BaseModel):
    """One answer a drawing."""

    answers: list[Answer]


class CurveAnswers(BaseModel):
    """One curve a learner, at the x that were asked for."""

    curves: list[Curve]


class Problem(BaseModel):
    """What went wrong, in a sentence."""

    detail: str


PROBLEMS: dict[int | str, dict[str, Any]] = {
    code: {"model": Problem, "description": text}
    for code, text in {
        400: "not a request that can be read",
        403: "foreign page or host",
        404: "unknown task, or no such model here",
        408: "took too long to arrive",
        413: "too large",
        415: "not JSON",
        422: "malformed",
        503: "busy; try again",
    }.items()
}
LINKS = {
    name: {"operationId": name, "requestBody": {"task": "$response.body#/task"}, "description": text}
    for name, text in {
        "predict": "The id of the task is what /api/predict asks for.",
        "fit": "It may also name the task whose samples are replaced.",
    }.items()
}
PATHS = {"/api/models": "GET", "/api/fit": "POST", "/api/predict": "POST"}
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE")


@dataclass
class Served:
    """What a server has: either may be missing."""

    drawings: Drawings | None = None
    curves: Curves | None = None


def create_app(served: Served, hosts: Iterable[str] = ()) -> FastAPI:
    """The application; ``hosts`` are the names it may be asked under, besides addresses and ``localhost``."""
    app = FastAPI(
        title="metavrf", description=__doc__, docs_url=None, redoc_url=None, openapi_url="/openapi.json"
    )  # the pages that show the interface would load scripts from other hosts
    app.add_middleware(Guard, hosts=list(hosts), posts=[path for path, method in PATHS.items() if method == "POST"])
    store: Store[DrawingTask | CurveTask] = Store(MOST_TASKS, LIFE)
    worker = Worker(MOST_OF_ALL, MOST_WAITING)

    def held(key: str, kind: type[Item]) -> Item:
        task = store.get(key)
        if task is None:
            raise HTTPException(404, "This task is not held here (any more): send its samples to /api/fit again.")
        if not isinstance(task, kind):
            raise HTTPException(422, "This task is of the other kind: drawings and curves do not mix.")
        return task

    def drawings() -> Drawings:
        return _there(served.drawings, "model for drawings")

    def curves() -> Curves:
        return _there(served.curves, "model for curves")

    @app.get("/api/models", operation_id="models")
    async def describe() -> dict[str, Any]:
        """The models that are served, their protocol and test figures, and the limits of a task."""
        return {
            "drawing": served.drawings and served.drawings.about | {"size": served.drawings.size},
            "curve": served.curves and {"domain": served.curves.domain, "models": served.curves.about},
            "limits": {
                "classes": models.MOST_CLASSES,
                "pictures": models.MOST_PICTURES,
                "points": models.MOST_POINTS,
                "queries": models.MOST_QUERIES,
                "bytes": MOST_BYTES,
                "tasks": MOST_TASKS,
                "seconds": LIFE,
            },
        }

    @app.post("/api/fit", operation_id="fit", responses=PROBLEMS | {200: {"links": LINKS}})
    async def fit(wanted: Fit, request: Request) -> Fitted:
        """Hold a support set: a new task, or what is now in the one that is named."""
        task: DrawingTask | CurveTask
        shots: dict[str, int] | int
        if isinstance(wanted, DrawingFit):
            classes = {samples.name: samples.pictures for samples in wanted.classes}
            if len(classes) < len(wanted.classes):
                raise HTTPException(422, "Two classes have the same name: give each its own.")
            shots = {name: len(pictures) for name, pictures in classes.items()}
            if sum(shots.values()) > models.MOST_PICTURES:
                raise HTTPException(422, f"A task holds at most {models.MOST_PICTURES} pictures: send fewer.")
            before = None if wanted.task is None else held(wanted.task, DrawingTask)
            task = await worker.run(_client(request), drawings().fit, classes, before)
        else:
            curves()
            if wanted.task is not None:
                held(wanted.task, CurveTask)
            task = CurveTask([x for x, _ in wanted.points], [y for _, y in wanted.points])
            shots = len(wanted.points)
        return Fitted(task=store.put(task, wanted.task), shots=shots)

    @app.post("/api/predict", operation_id="predict", responses=PROBLEMS)
    async def predict(wanted: Query, request: Request) -> DrawingAnswers | CurveAnswers:
        """Predict in a task that /api/fit made."""
        if isinstance(wanted, DrawingQuery):
            drawn = held(wanted.task, DrawingTask)
            rows = (await worker.run(_client(request), drawings().predict, drawn, wanted.pictures)).tolist()
            by_name = [dict(zip(drawn.names, row, strict=True)) for row in rows]
            answers = [Answer(best=max(row, key=row.__getitem__), probabilities=row) for row in by_name]
            return DrawingAnswers(answers=answers)
        fitted = await worker.run(_client(request), curves().predict, held(wanted.task, CurveTask), wanted.x)
        return CurveAnswers(curves=fitted)

    for path, method in PATHS.items():
        app.add_route(path, _only(method), [name for name in METHODS if name != method], include_in_schema=False)

    @app.exception_handler(UserError)
    async def user_error(_: Request, error: UserError) -> JSONResponse:
        return _problem(422, f"{str(error)[:1].upper()}{str(error)[1:]}.")

    @app.exception_handler(RequestValidationError)
    async def malformed(_: Request, error: RequestValidationError) -> JSONResponse:
        return _problem(422, _sentence(error))

    @app.exception_handler(StarletteHTTPException)
    async def refused(_: Request, error: StarletteHTTPException) -> JSONResponse:
        return JSONResponse({"detail": f"{error.detail.rstrip('.')}."}, error.status_code, error.headers)

    @app.exception_handler(BusyError)
    async def busy(_: Request, __: BusyError) -> JSONResponse:
        return _problem(503, "The server has more to compute than it can take: try again in a second.")

    @app.exception_handler(Exception)
    async def failed(_: Request, __: Exception) -> JSONResponse:
        return _problem(500, "The server failed on this request; its log says why.")

    app.mount("/", StaticFiles(directory=STATIC, html=True))
    return app


def _only(method: str) -> Callable[[Request], Awaitable[Response]]:
    """What is asked by another method than this one is told so."""

    async def refuse(_: Request) -> Response:
        raise HTTPException(405, f"Ask here by {method} only.", {"allow": method})

    return refuse


def _client(request: Request) -> str:
    """Whose turn it is: that of an address."""
    return request.client.host if request.client is not None else ""


def _there(model: Item | None, what: str) -> Item:
    if model is None:
        raise HTTPException(404, f"This server has no {what}.")
    return model


def _problem(status: int, sentence: str) -> JSONResponse:
    return JSONResponse({"detail": sentence}, status, {"retry-after": "1"} if status == 503 else None)


def _sentence(error: RequestValidationError) -> str:
    """What is wrong, and where; without what was sent, which may be long."""
    last = error.errors()[-1]  # of a picture, which may be of two types, the one with the longer path
    types = ("body", "drawing", "curve", "str")
    where = ".".join(str(part) for part in last["loc"] if part not in types and not str(part).startswith("list["))
    what = str(last["msg"]).removesuffix(".")
    return f"{where}: {what}." if where else f"{what}."
