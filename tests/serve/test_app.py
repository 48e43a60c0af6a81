from __future__ import annotations

import base64
import concurrent.futures
import json
import math
import re
import struct
import threading
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

pytest.importorskip("fastapi", reason="the extra 'serve' is not installed")
pytest.importorskip("uvicorn", reason="the extra 'serve' is not installed")

import metavrf
from glyphs import encoded, glyph, refused
from metavrf.config import Config
from metavrf.episodes import Episodes
from metavrf.runs.directory import Run
from metavrf.serve import app as application
from metavrf.serve import guard
from metavrf.serve.app import Served, create_app
from metavrf.serve.models import Curves, CurveTask, Drawings
from metavrf.spec import TaskSpec
from processes import TINY_OPTIONS
from servers import Server, mixture_beside, running

STATIC = Path(application.__file__).parent / "static"
SIZE = 28


def rows(number: int, drawer: int) -> list[list[int]]:
    return (255 - glyph(number, drawer, SIZE)).tolist()


def png(number: int, drawer: int, side: int = SIZE) -> str:
    return base64.b64encode(encoded(glyph(number, drawer, side))).decode()


def classes(ways: int = 3) -> list[dict[str, Any]]:
    """Glyphs with one, two, three ... drawings a class."""
    return [
        {"name": f"glyph {number}", "pictures": [rows(number, drawer) for drawer in range(1 + number)]}
        for number in range(ways)
    ]


def drawing_task(server: Server, ways: int = 3) -> str:
    reply = server.post("/api/fit", {"kind": "drawing", "classes": classes(ways)})
    assert reply.status == 200, reply.body
    return str(reply.body["task"])


def test_new_drawings_of_a_few_classes_with_unequal_shots_are_recognised(server: Server) -> None:
    task = drawing_task(server, ways=4)
    asked = [rows(number, drawer) for number in range(4) for drawer in (7, 8)]
    reply = server.post("/api/predict", {"kind": "drawing", "task": task, "pictures": asked})
    assert [answer["best"] for answer in reply.body["answers"]] == [
        f"glyph {number}" for number in (0, 0, 1, 1, 2, 2, 3, 3)
    ]
    for answer in reply.body["answers"]:
        assert sum(answer["probabilities"].values()) == pytest.approx(1)
        assert max(answer["probabilities"], key=answer["probabilities"].get) == answer["best"]


def test_the_answer_is_that_of_the_learner_on_the_whole_task(served: Served, server: Server) -> None:
    assert served.drawings is not None
    reply = server.post("/api/predict", {"kind": "drawing", "task": drawing_task(server), "pictures": [rows(1, 9)]})
    support = torch.tensor([[[picture] for c in classes() for picture in c["pictures"]]], dtype=torch.uint8)
    labels = torch.tensor([[0, 1, 1, 2, 2, 2]])
    query = torch.tensor([[[rows(1, 9)]]], dtype=torch.uint8)
    expected = served.drawings.model.predict(Episodes(support, labels, query, way=3)).mean[0, 0].exp()
    assert list(reply.body["answers"][0]["probabilities"].values()) == pytest.approx(expected.tolist(), abs=1e-5)


def test_a_class_can_be_added_and_one_taken_away_under_the_same_id(server: Server) -> None:
    task = drawing_task(server)
    more = server.post("/api/fit", {"kind": "drawing", "task": task, "classes": classes(4)[1:]})
    assert more.body["task"] == task
    assert more.body["shots"] == {"glyph 1": 2, "glyph 2": 3, "glyph 3": 4}
    reply = server.post("/api/predict", {"kind": "drawing", "task": task, "pictures": [rows(3, 9)]})
    assert reply.body["answers"][0]["best"] == "glyph 3"
    assert list(reply.body["answers"][0]["probabilities"]) == ["glyph 1", "glyph 2", "glyph 3"]


def test_a_picture_is_embedded_once_in_the_life_of_a_task(monkeypatch: pytest.MonkeyPatch) -> None:
    drawings, counts = Drawings("omniglot"), []
    embed = drawings.embed

    def counted(pictures: Sequence[NDArray[np.uint8]]) -> torch.Tensor:
        counts.append(len(pictures))
        return embed(pictures)

    monkeypatch.setattr(drawings, "embed", counted)
    task = drawings.fit({"a": [rows(0, 0)], "b": [rows(1, 0)]})
    task = drawings.fit({"a": [rows(0, 0), rows(0, 1)], "b": [rows(1, 0)]}, task)
    assert counts == [2, 1]
    again = drawings.fit({"b": [rows(1, 0)], "a": [rows(0, 1)]}, task)
    assert counts == [2, 1]
    assert len(again.known) == 2  # what is no longer in the task is forgotten
    drawings.predict(task, [rows(0, 5)])
    assert counts == [2, 1, 1]  # the support is not embedded again


def test_a_png_and_its_rows_are_the_same_picture(served: Served) -> None:
    assert served.drawings is not None
    assert np.array_equal(served.drawings.decode(png(2, 3), "it"), served.drawings.decode(rows(2, 3), "it"))
    assert served.drawings.decode(png(2, 3, side=105), "it").shape == (1, SIZE, SIZE)


@pytest.mark.parametrize("inverted", [True, False])
def test_drawings_reach_a_model_as_the_pictures_it_was_trained_on(
    inverted: bool, served: Served, tmp_path: Path
) -> None:
    if inverted:  # omniglot is trained on bright ink
        assert served.drawings is not None
        drawings, expected = served.drawings, 255 - glyph(2, 3, SIZE)
    else:  # pictures of one's own are as they are
        config = Config.of("./pictures", embedding="conv4", channels=8, bases=32, image_size=SIZE, grey=True)
        spec = TaskSpec((1, SIZE, SIZE), None)
        run = Run.create(tmp_path / "run", config, spec)
        run.save_model(config.build(spec).state_dict(), {})
        drawings, expected = Drawings(run.path), glyph(2, 3, SIZE)
    (tmp_path / "picture.png").write_bytes(encoded(glyph(2, 3, SIZE)))
    assert np.array_equal(drawings.model.preprocessed(tmp_path / "picture.png")[0], expected)
    for sent in (png(2, 3), rows(2, 3)):
        assert np.array_equal(drawings.decode(sent, "it")[0], expected)


@pytest.fixture(scope="module")
def mixture(curve_runs: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Curves:
    return mixture_beside(curve_runs[1], tmp_path_factory.mktemp("mixture"))


@pytest.fixture(scope="module")
def mixture_server(mixture: Curves) -> Iterator[Server]:
    with running(Served(None, mixture)) as started:
        yield started


def test_a_curve_passes_with_its_band_beside_the_other_learners(mixture: Curves, mixture_server: Server) -> None:
    points = [[-4.0, 1.0], [-2.0, -1.5], [0.5, 2.0], [3.0, -1.0]]
    task = mixture_server.post("/api/fit", {"kind": "curve", "points": points}).body
    assert task["shots"] == 4
    x = [-5.0, -2.0, 0.0, 5.0]
    curves = mixture_server.post("/api/predict", {"kind": "curve", "task": task["task"], "x": x}).body["curves"]
    assert [curve["name"] for curve in curves] == ["mixture", "small-rff"]
    episodes = Episodes.of_task([x for x, _ in points], [y for _, y in points], x)
    for curve, model in zip(curves, mixture.models, strict=True):
        fit = model.learner.predict(episodes)
        assert curve["mean"] == pytest.approx(fit.mean.flatten().tolist(), rel=1e-4, abs=1e-5)
        for end, expected in zip(("low", "high"), fit.band(), strict=True):
            assert curve[end] == pytest.approx(expected.flatten().tolist(), rel=1e-3, abs=1e-4)


WAVE = [[x, round(3 * math.sin(x + 0.5), 3)] for x in (-3.0, -0.6, 1.5, 3.4, 4.6)]


def curves_of(server: Server, points: list[list[float]], x: Sequence[float] = (0.0,)) -> list[dict[str, Any]]:
    task = server.post("/api/fit", {"kind": "curve", "points": points}).body["task"]
    reply = server.post("/api/predict", {"kind": "curve", "task": task, "x": list(x)})
    assert reply.status == 200, reply.body
    return list(reply.body["curves"])


def entropy(curve: dict[str, Any]) -> float:
    """Of the weights, in nats."""
    return -sum(kernel["weight"] * math.log(max(kernel["weight"], 1e-300)) for kernel in curve["kernels"])


def test_a_mixture_says_how_the_points_weigh_its_kernels(mixture: Curves, mixture_server: Server) -> None:
    curve, plain = curves_of(mixture_server, WAVE)
    assert plain["kernels"] is None
    frequencies = [kernel["frequency"] for kernel in curve["kernels"]]
    weights = [kernel["weight"] for kernel in curve["kernels"]]
    assert frequencies == sorted(frequencies)
    assert min(frequencies) >= 0
    assert min(weights) >= 0
    assert sum(weights) == pytest.approx(1, abs=1e-4)
    about = mixture_server.get("/api/models").body["curve"]["models"]
    assert [model["kernels"] for model in about] == [32, None]
    episodes = Episodes.of_task([x for x, _ in WAVE], [y for _, y in WAVE], [0.0])
    of_the_curve = mixture.models[0].learner.predict(episodes).weights.unflatten(0, (-1, 32)).sum(0)
    assert sorted(weights) == pytest.approx(sorted(of_the_curve.flatten().tolist()), abs=1e-4)


def test_the_more_points_of_a_wave_the_fewer_kernels_count(mixture_server: Server) -> None:
    first, whole = (curves_of(mixture_server, WAVE[:count])[0] for count in (1, len(WAVE)))
    assert entropy(whole) < 0.5 * entropy(first)


@pytest.mark.parametrize(
    "points", [WAVE[:1], WAVE[:2], [[0, 1e6]], [[1e6, 0], [-1e6, 1e6]], [[1, 2], [1, -2]]], ids=str
)
def test_one_or_two_points_are_enough_and_may_be_far_out_or_at_odds(
    mixture_server: Server, points: list[list[float]]
) -> None:
    for curve in curves_of(mixture_server, points, [-5.0, 0.0, 5.0]):
        assert np.isfinite([curve["mean"], curve["low"], curve["high"]]).all()
        assert all(low <= high for low, high in zip(curve["low"], curve["high"], strict=True))
        if curve["kernels"] is not None:
            assert sum(kernel["weight"] for kernel in curve["kernels"]) == pytest.approx(1, abs=1e-4)


def test_learners_of_one_kernel_have_no_weights_to_tell(server: Server) -> None:
    about = server.get("/api/models").body["curve"]["models"]
    assert [(model["learner"], model["kernels"]) for model in about] == [("metavrf", 1), ("rff", None)]
    assert [curve["kernels"] for curve in curves_of(server, WAVE)] == [None, None]


def test_kernels_drawn_several_times_have_one_weight_each(tmp_path: Path) -> None:
    options = TINY_OPTIONS | {"iterations": 2, "validate_every": 2, "components": 12, "samples": 2, "context": "none"}
    metavrf.train("sine", out=tmp_path / "drawn", quiet=True, **options)
    kernels = Curves(tmp_path / "drawn").predict(CurveTask([0.0, 1.0], [1.0, 2.0]), [0.0])[0].kernels
    assert kernels is not None
    assert len(kernels) == 12
    assert sum(kernel.weight for kernel in kernels) == pytest.approx(1, abs=1e-4)


def test_the_server_says_which_models_and_protocol_it_uses(server: Server) -> None:
    about = server.get("/api/models").body
    assert about["drawing"]["name"] == "omniglot"
    assert about["drawing"]["protocol"] == "inductive"
    assert about["drawing"]["split"] == "vinyals"
    assert about["drawing"]["size"] == SIZE
    assert {"metric", "mean", "ci95", "way", "shot", "tasks", "protocol"} == set(about["drawing"]["tests"][0])
    named = [(test["way"], test["shot"], test["protocol"]) for test in about["drawing"]["tests"]]
    assert len(set(named)) == len(named)  # of the card, only what was tested as the page answers: one view of a drawing
    assert [model["learner"] for model in about["curve"]["models"]] == ["metavrf", "rff"]
    assert about["curve"]["domain"] == [-5.0, 5.0]


def test_the_interface_describes_itself_without_pages_of_other_hosts(server: Server) -> None:
    described = server.get("/openapi.json").body
    assert {"/api/fit", "/api/predict", "/api/models"} <= set(described["paths"])
    assert "HTTPValidationError" not in json.dumps(described)
    assert server.get("/docs").status == server.get("/redoc").status == 404


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def bomb(side: int) -> str:
    """A small PNG file that says it is ``side`` pixels wide and high."""
    header = struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0)
    data = (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(bytes(1000))) + chunk(b"IEND", b"")
    )
    return base64.b64encode(data).decode()


def base64_of(data: bytes) -> str:
    return base64.b64encode(data).decode()


WHOLE = encoded(glyph(0, 0, SIZE))
BAD_PICTURES = {
    "not base64": ("&&&", "base64"),
    "another kind of file": (base64_of(encoded(glyph(0, 0, SIZE), "JPEG")), "not a PNG"),
    "text": (base64_of(b"<svg onload=alert(1)>"), "not a PNG"),
    "nothing": ("", "not a PNG"),
    "a signature alone": (base64_of(WHOLE[:8]), "not a PNG"),
    "a file cut off": (base64_of(WHOLE[:60]), "cannot be read|can be read"),
    "a bomb": (bomb(30_000), "30000 x 30000 pixels"),
    "a bomb in disguise": (bomb(1999), "can be read"),
    "too few rows": ([[0] * SIZE] * (SIZE - 1), "28 rows of 28"),
    "a short row": ([[0] * SIZE] * (SIZE - 1) + [[0]], "28 rows of 28"),
    "no rows": ([], "28 rows of 28"),
    "too much ink": ([[256] * SIZE] * SIZE, "0 .paper. to 255"),
    "less than no ink": ([[-1] * SIZE] * SIZE, "0 .paper. to 255"),
    "words": ([["ink"] * SIZE] * SIZE, "integer"),
    "fractions": ([[0.5] * SIZE] * SIZE, "integer"),
    "a number": (7, "list"),
}


@pytest.mark.parametrize("case", BAD_PICTURES)
def test_what_is_no_picture_gets_a_sentence(server: Server, case: str) -> None:
    picture, expected = BAD_PICTURES[case]
    good = rows(0, 0)
    for path, body in (
        ("/api/fit", {"classes": [{"name": "a", "pictures": [good]}, {"name": "b", "pictures": [good, picture]}]}),
        ("/api/predict", {"task": drawing_task(server), "pictures": [picture]}),
    ):
        reply = server.post(path, {"kind": "drawing", **body})
        assert reply.status == 422
        assert re.search(expected, reply.sentence), reply.sentence


def fit(**fields: Any) -> dict[str, Any]:
    return {"kind": "drawing", "classes": classes(2)} | fields


SAME = [{"name": "a", "pictures": [rows(0, 0)]}] * 2
MANY = [{"name": str(n), "pictures": [[[0] * SIZE] * SIZE] * 5} for n in range(50)]
BAD_FITS: dict[str, tuple[Any, str]] = {
    "no JSON": (b"{", "JSON"),
    "no object": ([1, 2], "kind|dictionary|object"),
    "nothing": (b"", "required|JSON"),
    "an endless depth": (b"[" * 100_000, "."),
    "an endless number": (b'{"kind": "curve", "points": [[' + b"9" * 5000 + b", 1]]}", "."),
    "not a number": (b'{"kind": "curve", "points": [[NaN, 1]]}', "number"),
    "infinity": (b'{"kind": "curve", "points": [[1, Infinity]]}', "number|less than"),
    "a far point": ({"kind": "curve", "points": [[0, 1e30]]}, "less than"),
    "a point of three": ({"kind": "curve", "points": [[0, 1, 2]]}, "2 items"),
    "no points": ({"kind": "curve", "points": []}, "at least 1"),
    "many points": ({"kind": "curve", "points": [[0, 1]] * 101}, "at most 100"),
    "an unknown kind": (fit(kind="photo"), "kind"),
    "a misspelt field": (fit(class_=1), "Extra inputs"),
    "one class": (fit(classes=classes(1)), "at least 2"),
    "a class without drawings": (fit(classes=[*classes(2), {"name": "c", "pictures": []}]), "at least 1"),
    "a class without a name": (fit(classes=[*classes(2), {"name": "", "pictures": [rows(0, 0)]}]), "at least 1"),
    "two of one name": (fit(classes=SAME), "same name"),
    "too many pictures": (fit(classes=MANY), "at most 200 pictures"),
    "too many classes": (fit(classes=[{"name": str(n), "pictures": ["x"]} for n in range(51)]), "at most 50"),
    "a list of mistakes": (fit(classes=[{"name": "a", "pictures": [[[""] * 100_000]]}]), "integer"),
}


@pytest.mark.parametrize("case", BAD_FITS)
def test_a_malformed_task_gets_a_sentence(server: Server, case: str) -> None:
    body, expected = BAD_FITS[case]
    reply = server.post("/api/fit", body)
    assert reply.status in (400, 422)
    assert re.search(expected, reply.sentence), reply.sentence


def test_a_task_is_only_known_by_its_id_and_only_of_its_kind(server: Server) -> None:
    unknown = server.post("/api/predict", {"kind": "curve", "task": "0", "x": [0]})
    assert unknown.status == 404
    assert "/api/fit" in unknown.sentence
    assert server.post("/api/fit", fit(task="0")).status == 404
    mixed = server.post("/api/predict", {"kind": "curve", "task": drawing_task(server), "x": [0]})
    assert mixed.status == 422
    assert "other kind" in mixed.sentence


def test_only_so_many_tasks_are_held(server: Server, served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(application, "MOST_TASKS", 2)
    with running(served) as small:
        ids = [small.post("/api/fit", {"kind": "curve", "points": [[0, 1]]}).body["task"] for _ in range(3)]
        found = [small.post("/api/predict", {"kind": "curve", "task": task, "x": [0]}).status for task in ids]
    assert found == [404, 200, 200]


def test_a_server_without_a_model_says_so(served: Served) -> None:
    with running(Served()) as empty:
        assert empty.get("/api/models").body["curve"] is None
        for body in (fit(), {"kind": "curve", "points": [[0, 1]]}):
            reply = empty.post("/api/fit", body)
            assert reply.status == 404
            assert "no model" in reply.sentence


def test_a_body_that_is_too_large_is_refused_while_it_comes(server: Server) -> None:
    body = b" " * (guard.MOST_BYTES + 1)
    declared = server.post("/api/fit", body)
    assert declared.status == 413
    assert "1,000,000 bytes" in declared.sentence
    waiting = server.post("/api/fit", None, {"Content-Length": "999999999999", "Expect": "100-continue"})
    assert waiting.status == 413  # without a byte of it
    assert server.get("/api/models").status == 200


def test_a_body_in_pieces_is_counted(server: Server) -> None:
    import http.client

    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    pieces = (b" " * 100_000 for _ in range(30))
    connection.request("POST", "/api/fit", pieces, {"Content-Type": "application/json"}, encode_chunked=True)
    answer = connection.getresponse()
    assert answer.status == 413
    connection.close()


def test_a_body_that_never_comes_is_not_waited_for(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "READ_SECONDS", 0.1)
    reply = server.post("/api/fit", None, {"Content-Length": "10"})
    assert reply.status == 408
    assert "seconds" in reply.sentence


def test_only_json_is_taken(server: Server) -> None:
    body = json.dumps(fit()).encode()
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""):
        reply = server.ask("POST", "/api/fit", body, {"Content-Type": kind})
        assert reply.status == 415
        assert "application/json" in reply.sentence
    assert server.ask("POST", "/api/fit", body, {"Content-Type": "application/json; charset=utf-8"}).status == 200


@pytest.mark.parametrize("path", ["/", "/api/models", "/openapi.json", "/draw.js"])
def test_the_server_answers_only_under_its_own_names(server: Server, path: str) -> None:
    for host in ("evil.example", "evil.example:80", "localhost.evil.example", "127.0.0.1.evil.example", "", "[", "a b"):
        reply = server.get(path, {"Host": host})
        assert reply.status in (400, 403), host  # 400 where no server reads such a header
    for host in ("localhost", "LOCALHOST:1", "127.0.0.1:8000", "[::1]:8000", "192.168.0.7"):
        assert server.get(path, {"Host": host}).status == 200, host


def test_a_name_that_is_allowed_is_answered(served: Served) -> None:
    with running(served, hosts=("Box.lan",)) as named:
        assert named.get("/", {"Host": "box.lan:8000"}).status == 200
        assert named.get("/", {"Host": "other.lan"}).status == 403


def test_posts_from_other_pages_are_refused(server: Server) -> None:
    body = {"kind": "curve", "points": [[0, 1]]}
    own = f"127.0.0.1:{server.port}"
    for headers in (
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": f"http://localhost:{server.port}"},
        {"Origin": "http://127.0.0.1:1"},
        {"Origin": "http://["},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ):
        reply = server.post("/api/fit", body, headers)
        assert reply.status == 403, headers
        assert "other pages" in reply.sentence
    assert server.post("/api/fit", body, {"Origin": f"http://{own}", "Sec-Fetch-Site": "same-origin"}).status == 200
    preflight = server.ask("OPTIONS", "/api/fit", headers={"Origin": "http://evil.example"})
    assert preflight.status == 403
    assert "access-control-allow-origin" not in preflight.headers


@pytest.mark.parametrize("path", ["/", "/style.css", "/api/models", "/nothing", "/../app.py", "/%2e%2e/app.py"])
def test_every_answer_keeps_the_browser_to_this_server(server: Server, path: str) -> None:
    reply = server.get(path)
    assert reply.status == (404 if "nothing" in path or "app.py" in path else 200)
    policy = reply.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert set(re.findall(r"-src (\S+)", policy)) <= {"'self'", "'none';", "'self';"}
    assert reply.headers["x-content-type-options"] == "nosniff"
    assert "frame-ancestors 'none'" in policy


def test_the_page_names_no_other_host_and_has_no_inline_code() -> None:
    for file in STATIC.iterdir():
        found = set(re.findall(r"https?://[^\s\"'<]+", file.read_text()))
        assert found <= {"http://www.w3.org/2000/svg"}, file  # a name, not an address
    page = (STATIC / "index.html").read_text()
    assert not re.search(r"<script(?![^>]*src=)|\son\w+=|\sstyle=|<style", page)


def test_the_server_answers_while_it_computes_and_refuses_more_than_it_can_take(served: Served) -> None:
    assert served.curves is not None
    entered, release = threading.Event(), threading.Event()

    class Slow(Curves):
        def predict(self, task: CurveTask, x: Any) -> Any:
            entered.set()
            assert release.wait(60)
            return super().predict(task, x)

    slow = Slow.__new__(Slow)
    slow.__dict__.update(vars(served.curves))
    most = application.MOST_WAITING
    with running(Served(served.drawings, slow)) as busy, concurrent.futures.ThreadPoolExecutor(most + 5) as pool:
        try:
            task = busy.post("/api/fit", {"kind": "curve", "points": [[0, 1]]}).body["task"]
            query = {"kind": "curve", "task": task, "x": [0]}
            asked = [pool.submit(busy.post, "/api/predict", query) for _ in range(most + 5)]
            assert entered.wait(60)
            done = concurrent.futures.as_completed(asked, timeout=60)
            refusals = [next(done).result() for _ in range(5)]  # the others wait
            assert [reply.status for reply in refusals] == [503] * 5
            assert "try again" in refusals[0].sentence
            assert refusals[0].headers["retry-after"] == "1"
            assert busy.get("/api/models").status == busy.get("/").status == 200
        finally:
            release.set()
        assert sorted(future.result().status for future in asked) == [200] * most + [503] * 5
        assert busy.post("/api/predict", query).status == 200


def test_a_failure_inside_is_told_without_its_details(served: Served) -> None:
    assert served.curves is not None

    class Broken(Curves):
        def predict(self, task: CurveTask, x: Any) -> Any:
            raise RuntimeError("secret")

    broken = Broken.__new__(Broken)
    broken.__dict__.update(vars(served.curves))
    with running(Served(served.drawings, broken)) as failing:
        task = failing.post("/api/fit", {"kind": "curve", "points": [[0, 1]]}).body["task"]
        reply = failing.post("/api/predict", {"kind": "curve", "task": task, "x": [0]})
        assert reply.status == 500
        assert "secret" not in reply.sentence
        assert failing.get("/api/models").status == 200


def test_a_model_that_does_not_fit_its_tab_is_refused(curve_runs: tuple[Path, Path]) -> None:
    with refused("does not classify", curve_runs[0]):
        Drawings(curve_runs[0])
    with refused("omniglot does not fit curves"):
        Curves("omniglot")


def test_an_application_can_be_made_without_any_model() -> None:
    assert create_app(Served()).title == "metavrf"
