"""The page in a real browser: Debian's Chromium, driven by Playwright."""

from __future__ import annotations

import math
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("fastapi", reason="the extra 'serve' is not installed")
pytest.importorskip("uvicorn", reason="the extra 'serve' is not installed")

from metavrf.serve.app import Served
from servers import Server, mixture_beside, running

CHROMIUM = shutil.which("chromium")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed: apt-get install chromium")

sync_api = pytest.importorskip("playwright.sync_api")
sync_api.expect.set_options(timeout=30_000)  # generous: the machine may be busy
PHONE: dict[str, Any] = {
    "viewport": {"width": 360, "height": 740},
    "has_touch": True,
    "is_mobile": True,
    "color_scheme": "dark",
}
Page = Any
Strokes = list[list[tuple[float, float]]]


def circle(x: float, y: float, radius: float) -> list[tuple[float, float]]:
    turns = [2 * math.pi * step / 16 for step in range(17)]
    return [(x + radius * math.cos(turn), y + radius * math.sin(turn)) for turn in turns]


def character(name: str, wobble: float = 0.0) -> Strokes:
    """Three characters, by hands that differ."""
    return {
        "tent": [
            [(0.3 + wobble, 0.8), (0.5, 0.2 + wobble), (0.7, 0.8 - wobble)],
            [(0.38, 0.55), (0.64, 0.55 + wobble)],
        ],
        "wheel": [circle(0.5, 0.5, 0.3 - wobble), [(0.5 + wobble, 0.1), (0.5, 0.9)]],
        "stair": [[(0.2, 0.25 + wobble), (0.5, 0.25), (0.5, 0.5), (0.8, 0.5 - wobble), (0.8, 0.8)]],
    }[name]


def moved(strokes: Strokes, scale: float, x: float, y: float) -> Strokes:
    return [[(x + scale * a, y + scale * b) for a, b in stroke] for stroke in strokes]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as playwright:
        started = playwright.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox"] if os.geteuid() == 0 else []
        )
        yield started
        started.close()


def open_page(browser: Any, server: Server, *, failures: bool = False, **options: Any) -> Iterator[Page]:
    """A fresh visitor; nothing may go wrong or leave for another host. ``failures`` of requests may be expected."""
    context = browser.new_context(**{"viewport": {"width": 1280, "height": 900}} | options)
    page, problems, hosts = context.new_page(), [], set()

    def note(message: Any) -> None:
        expected = failures and message.text.startswith("Failed to load resource")
        if message.type in ("error", "warning") and not expected:
            problems.append(message.text)

    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("console", note)
    page.on("request", lambda request: hosts.add("/".join(request.url.split("/")[:3]) + "/"))
    page.goto(server.url)
    page.wait_for_selector("html[data-ready]")
    yield page
    context.close()
    assert problems == []
    assert hosts == {server.url}


@pytest.fixture
def page(browser: Any, server: Server) -> Iterator[Page]:
    yield from open_page(browser, server)


@pytest.fixture
def failing(browser: Any, server: Server) -> Iterator[Page]:
    """Divert its requests by a handler that stays: Chromium can lose one made while Playwright ends a diversion."""
    yield from open_page(browser, server, failures=True)


@pytest.fixture
def phone(browser: Any, server: Server) -> Iterator[Page]:
    yield from open_page(browser, server, **PHONE)


@pytest.fixture(scope="module")
def mixture_server(curve_runs: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Of a model of 32 kernels, beside plain random features."""
    with running(Served(None, mixture_beside(curve_runs[1], tmp_path_factory.mktemp("mixture")))) as started:
        yield started


@pytest.fixture
def mixed(browser: Any, mixture_server: Server) -> Iterator[Page]:
    yield from open_page(browser, mixture_server)


@pytest.fixture
def mixed_phone(browser: Any, mixture_server: Server) -> Iterator[Page]:
    yield from open_page(browser, mixture_server, **PHONE)


def pen(page: Page, strokes: Strokes, *, lift: bool = True) -> None:
    """Draw on the pad by mouse."""
    page.locator("#pad").scroll_into_view_if_needed()
    box = page.locator("#pad").bounding_box()
    for stroke in strokes:
        places = [(box["x"] + x * box["width"], box["y"] + y * box["height"]) for x, y in stroke]
        page.mouse.move(*places[0])
        page.mouse.down()
        for place in places[1:]:
            page.mouse.move(*place, steps=3)
        if lift:
            page.mouse.up()


def teach(page: Page, *names: str) -> None:
    """A class for each character, with one drawing."""
    for name in names:
        pen(page, character(name))
        page.click("#new-class")


def expect_best(page: Page, name: str) -> None:
    """The class with the longest bar comes to be this one."""
    sync_api.expect(page.locator(".class.best input")).to_have_value(name)


def shots(page: Page) -> list[int]:
    return [item.locator(".shot").count() for item in page.locator(".class").all()]


def test_a_new_drawing_is_classified_while_the_pen_moves(page: Page) -> None:
    teach(page, "tent", "wheel")
    pen(page, character("wheel", 0.04)[:1], lift=False)
    page.wait_for_selector(".class.best")  # the pen is still down
    before = page.locator(".percent").all_inner_texts()
    assert all(before)
    page.mouse.up()
    pen(page, character("wheel", 0.04)[1:])
    expect_best(page, "B")
    sync_api.expect(page.locator("#draw-answer")).to_contain_text("Most likely B")
    sync_api.expect(page.locator("#draw-spoken")).to_contain_text("Most likely B")


def test_classes_and_shots_are_added_at_any_time(page: Page) -> None:
    teach(page, "tent", "wheel")
    pen(page, character("tent", 0.03))
    page.get_by_role("button", name="Add the drawing to class A").click()
    assert shots(page) == [2, 1]
    pen(page, character("stair", 0.03))
    page.wait_for_selector(".class.best")
    page.click("#new-class")
    pen(page, character("stair"))
    expect_best(page, "C")
    assert page.locator(".percent").count() == 3


def test_small_drawings_in_a_corner_are_recognised_too(page: Page) -> None:
    teach(page, "tent", "wheel", "stair")
    for letter, name in zip("ABC", ("tent", "wheel", "stair"), strict=True):
        pen(page, moved(character(name, 0.02), 0.3, 0.05, 0.6))
        expect_best(page, letter)
        page.click("#draw-clear")
        sync_api.expect(page.locator(".class.best")).to_have_count(0)


def test_undo_and_redo_walk_through_strokes_and_classes(page: Page) -> None:
    teach(page, "tent")
    assert page.locator(".class").count() == 1
    page.click("#draw-undo")  # the class is gone, its drawing is on the pad again
    assert page.locator(".class").count() == 0
    assert page.is_enabled("#new-class")
    page.click("#draw-undo")
    page.click("#draw-undo")  # its two strokes
    assert page.is_disabled("#draw-undo")
    assert page.is_disabled("#new-class")
    for _ in range(3):
        page.click("#draw-redo")
    assert page.locator(".class").count() == 1
    page.click("#draw-reset")
    assert page.locator(".class").count() == 0
    page.locator("#pad").press("Control+z")
    assert shots(page) == [1]


def test_a_drawing_and_a_class_can_be_removed_and_a_class_renamed(page: Page) -> None:
    teach(page, "tent", "wheel")
    pen(page, character("tent", 0.03))
    page.get_by_role("button", name="Add the drawing to class A").click()
    page.get_by_role("button", name="Remove drawing 1 of class A").click()
    assert shots(page) == [1, 1]
    page.locator(".class input").first.fill("tent")
    page.locator(".class input").first.press("Enter")
    pen(page, character("tent", 0.02))
    sync_api.expect(page.locator("#draw-answer")).to_contain_text("Most likely tent")
    page.get_by_role("button", name="Remove class B").click()
    sync_api.expect(page.locator(".class.best")).to_have_count(0)  # one class alone has no probability


def test_a_reload_keeps_everything(page: Page) -> None:
    teach(page, "tent", "wheel")
    pen(page, character("wheel", 0.03))
    expect_best(page, "B")
    page.reload()
    page.wait_for_selector("html[data-ready]")
    assert shots(page) == [1, 1]
    expect_best(page, "B")


def test_the_page_goes_on_after_the_server_has_dropped_its_task(failing: Page) -> None:
    teach(failing, "tent", "wheel")
    dropped: list[str] = []

    def forget(route: Any) -> None:
        if dropped:
            route.continue_()
        else:
            dropped.append(route.request.post_data_json["task"])
            route.fulfill(status=404, content_type="application/json", body='{"detail": "This task is not held here."}')

    failing.route("**/api/predict", forget)
    pen(failing, character("wheel", 0.03))
    expect_best(failing, "B")
    assert len(dropped) == 1
    assert failing.is_hidden("#notice")


def test_a_drawing_can_be_made_and_filed_by_keyboard_alone(page: Page) -> None:
    pad = page.locator("#pad")
    for _ in range(10):  # tabs, and then the pad
        page.keyboard.press("Tab")
        if pad.evaluate("element => element === document.activeElement"):
            break
    else:
        pytest.fail("the pad cannot be reached by the Tab key")

    def walk(path: str) -> None:
        page.keyboard.press("Space")
        for step in path:
            page.keyboard.press({"l": "ArrowLeft", "r": "ArrowRight", "u": "ArrowUp", "d": "ArrowDown"}[step])
        page.keyboard.press("Space")

    walk("rrrrrr")
    page.keyboard.press("Enter")
    walk("dddddd")
    page.keyboard.press("Enter")
    walk("rrrrr")
    expect_best(page, "A")
    page.keyboard.press("1")
    assert shots(page) == [2, 1]
    walk("dd")
    page.keyboard.press("Delete")
    assert page.is_disabled("#draw-clear")


def test_a_finger_draws_and_nothing_scrolls_sideways_on_a_phone(phone: Page) -> None:
    box = phone.locator("#pad").bounding_box()
    touch = phone.context.new_cdp_session(phone)

    def finger(strokes: Strokes) -> None:
        for stroke in strokes:
            for number, (x, y) in enumerate(stroke):
                point = {"x": box["x"] + x * box["width"], "y": box["y"] + y * box["height"]}
                kind = "touchMove" if number else "touchStart"
                touch.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": [point]})
            touch.send("Input.dispatchTouchEvent", {"type": "touchEnd", "touchPoints": []})

    for name in ("tent", "wheel"):
        finger(character(name))
        phone.click("#new-class")
    finger(character("tent", 0.03))
    expect_best(phone, "A")
    for tab in ("draw", "curve"):
        phone.click(f"#tab-{tab}")
        assert phone.evaluate("document.documentElement.scrollWidth") == 360
    pad = phone.evaluate("getComputedStyle(document.getElementById('pad')).touchAction")
    assert pad == "none"


def set_points(page: Page, places: list[tuple[float, float]]) -> None:
    """Click on the plot, in parts of its size."""
    box = page.locator("#plot").bounding_box()
    for x, y in places:
        page.mouse.click(box["x"] + x * box["width"], box["y"] + y * box["height"])


def test_a_curve_with_its_band_follows_each_point_beside_another_learner(page: Page) -> None:
    page.click("#tab-curve")
    assert page.locator("#legend label").all_inner_texts() == ["MetaVRF (small-sine)", "RFF (small-rff)"]
    set_points(page, [(0.2, 0.3), (0.5, 0.6)])
    page.wait_for_selector(".fit.tone-0")
    sync_api.expect(page.locator("#plot .band")).to_have_count(2)
    sync_api.expect(page.locator("#plot .point")).to_have_count(2)
    before = page.locator("#plot .fit.tone-0").get_attribute("d")
    set_points(page, [(0.8, 0.2)])
    sync_api.expect(page.locator("#plot .fit.tone-0")).not_to_have_attribute("d", before)
    page.get_by_label("RFF (small-rff)").uncheck()
    sync_api.expect(page.locator("#plot .band")).to_have_count(1)
    set_points(page, [(0.8, 0.2)])  # a click on a point takes it away
    sync_api.expect(page.locator("#plot .point")).to_have_count(2)
    page.click("#curve-undo")
    sync_api.expect(page.locator("#plot .point")).to_have_count(3)
    page.reload()
    page.wait_for_selector("html[data-ready]")
    sync_api.expect(page.locator("#plot .point")).to_have_count(3)  # and the same tab is open
    page.wait_for_selector(".fit.tone-0")
    page.click("#curve-clear")
    sync_api.expect(page.locator("#plot .fit")).to_have_count(0)


def test_a_point_can_be_dragged_and_set_by_keyboard(page: Page) -> None:
    page.click("#tab-curve")
    set_points(page, [(0.3, 0.3)])
    box = page.locator("#plot").bounding_box()
    page.mouse.move(box["x"] + 0.3 * box["width"], box["y"] + 0.3 * box["height"])
    page.mouse.down()
    page.mouse.move(box["x"] + 0.6 * box["width"], box["y"] + 0.7 * box["height"], steps=5)
    page.mouse.up()
    assert float(page.locator("#plot .point").get_attribute("cx")) == pytest.approx(0.6 * box["width"], abs=3)
    page.mouse.move(0, 0)
    page.locator("#plot").press("ArrowRight")
    page.locator("#plot").press("Enter")
    sync_api.expect(page.locator("#plot .point")).to_have_count(2)
    page.locator("#plot").press("Delete")
    sync_api.expect(page.locator("#plot .point")).to_have_count(1)
    page.locator("#plot").press("Control+z")
    sync_api.expect(page.locator("#plot .point")).to_have_count(2)


def named(page: Page) -> tuple[float, float]:
    """The likeliest frequency and its share in percent, as the chart of kernels is named for who cannot see it."""
    label = page.locator("#kernels [role=img]").get_attribute("aria-label")
    found = re.search(r"frequency: (\d+\.\d\d).* \((?:[<>] )?(\d+) % of the weight\)", label)
    assert found, label
    return float(found[1]), float(found[2])


BARS = """() => [...document.querySelectorAll('#kernels rect')].map(bar =>
    [bar.height.baseVal.value, bar.matches('.best'), bar.matches('.still')])"""


def test_the_kernels_weights_move_with_each_point(mixed: Page) -> None:
    mixed.click("#tab-curve")
    chart = mixed.locator("#kernels [role=img]")
    sync_api.expect(chart).to_contain_text("Set a point")
    assert mixed.evaluate(BARS) == []
    with mixed.expect_response("**/api/predict") as told:
        set_points(mixed, [(0.2, 0.3)])
    sync_api.expect(mixed.locator("#kernels rect.best")).to_have_count(1)
    kernels = [kernel for kernel in told.value.json()["curves"][0]["kernels"] if kernel["frequency"] > 0.01]
    frequency, share = named(mixed)
    assert kernels[0]["frequency"] - 0.01 <= frequency <= kernels[-1]["frequency"] + 0.01
    assert 100 * max(kernel["weight"] for kernel in kernels) - 1 <= share <= 100
    sync_api.expect(mixed.locator("#kernels .likeliest")).to_contain_text(f"Likeliest frequency: {frequency:.2f}")
    before = mixed.evaluate(BARS)
    set_points(mixed, [(0.5, 0.6)])
    changed = f"before => JSON.stringify(({BARS})()) !== JSON.stringify(before)"
    mixed.wait_for_function(changed, arg=before)
    after = mixed.evaluate(BARS)
    of_waves = [(height, best) for height, best, still in after if not still]
    assert [height for height, best in of_waves if best] == [max(of_waves)[0]]


def weigh(page: Page, kernels: list[tuple[float, float]]) -> None:
    """Let the server answer with kernels of these frequencies and weights, and set a point."""

    def answer(route: Any) -> None:
        body = route.fetch().json()
        body["curves"][0]["kernels"] = [{"frequency": frequency, "weight": weight} for frequency, weight in kernels]
        route.fulfill(json=body)

    page.click("#tab-curve")
    page.route("**/api/predict", answer)
    set_points(page, [(0.2, 0.3)])
    sync_api.expect(page.locator("#kernels rect.best")).to_have_count(1)


def test_kernels_close_together_share_a_bar_and_those_without_a_wave_have_their_own(mixed: Page) -> None:
    weigh(mixed, [(0.0, 0.05), (0.0, 0.05), (0.5, 0.1), (0.912, 0.2), (0.914, 0.5), (1.3, 0.1)])
    heights, _, still = zip(*mixed.evaluate(BARS), strict=True)
    assert [height / max(heights) for height in heights] == pytest.approx([1 / 7, 1 / 7, 1, 1 / 7], rel=1e-3)
    assert still == (True, False, False, False)
    assert named(mixed) == (0.91, 70)


def test_points_that_fit_no_wave_are_told_so(mixed: Page) -> None:
    weigh(mixed, [(0.0, 0.8), (0.9, 0.1), (1.1, 0.1)])
    label = mixed.locator("#kernels [role=img]").get_attribute("aria-label")
    assert "Likeliest: no wave that it knows (80 % of the weight)" in label


@pytest.mark.parametrize("frequency", [0.0, 0.7])
def test_kernels_of_one_frequency_are_one_bar(mixed: Page, frequency: float) -> None:
    weigh(mixed, [(frequency, 0.5), (frequency, 0.5)])
    assert mixed.evaluate(BARS) == [[pytest.approx(96), True, frequency == 0]]


def test_the_chart_of_kernels_goes_with_its_curve(mixed: Page) -> None:
    mixed.click("#tab-curve")
    set_points(mixed, [(0.2, 0.3)])
    sync_api.expect(mixed.locator("#kernels rect.best")).to_have_count(1)
    mixed.get_by_label("MetaVRF (mixture)").uncheck()
    sync_api.expect(mixed.locator("#kernels")).to_be_hidden()
    mixed.get_by_label("MetaVRF (mixture)").check()
    sync_api.expect(mixed.locator("#kernels rect.best")).to_have_count(1)
    mixed.click("#curve-clear")
    chart = mixed.locator("#kernels [role=img]")
    sync_api.expect(chart).to_contain_text("Set a point")
    assert "No point is set" in chart.get_attribute("aria-label")
    assert mixed.evaluate(BARS) == []


def test_the_weights_come_back_with_the_points_after_a_reload(mixed: Page) -> None:
    mixed.click("#tab-curve")
    set_points(mixed, [(0.2, 0.3), (0.5, 0.6)])
    sync_api.expect(mixed.locator("#kernels rect.best")).to_have_count(1)
    mixed.reload()
    sync_api.expect(mixed.locator("#kernels rect.best")).to_have_count(1)


def test_the_kernels_fit_on_a_phone_with_the_true_frequency_of_an_example(mixed_phone: Page) -> None:
    mixed_phone.click("#tab-curve")
    mixed_phone.click("#curve-example")
    sync_api.expect(mixed_phone.locator("#kernels rect.best")).to_have_count(1)
    sync_api.expect(mixed_phone.locator("#kernels .truth")).to_have_count(1)
    sync_api.expect(mixed_phone.locator("#kernels .likeliest")).to_contain_text("true frequency")
    assert mixed_phone.evaluate("document.documentElement.scrollWidth") == 360
    frame = mixed_phone.locator("#kernels svg").bounding_box()
    for part in mixed_phone.locator("#kernels :is(rect, text)").all():
        box = part.bounding_box()
        assert frame["x"] <= box["x"]
        assert box["x"] + box["width"] <= frame["x"] + frame["width"]


def test_learners_of_one_kernel_have_no_chart_of_kernels(page: Page) -> None:
    page.click("#tab-curve")
    set_points(page, [(0.2, 0.3)])
    page.wait_for_selector(".fit.tone-0")
    assert page.is_hidden("#kernels")


def test_the_page_says_how_many_kernels_a_model_has(mixed: Page) -> None:
    mixed.click("#tab-curve")
    assert "Model mixture: MetaVRF, 32 kernels" in mixed.inner_text("#curve-model")


def test_an_example_shows_the_curve_that_its_points_are_of(page: Page) -> None:
    page.click("#tab-curve")
    page.click("#curve-example")
    sync_api.expect(page.locator("#plot .point")).to_have_count(5)
    sync_api.expect(page.locator("#plot .truth")).to_have_count(1)


def test_a_tab_has_an_address_of_its_own_and_the_page_starts_at_its_top(phone: Page, server: Server) -> None:
    assert phone.evaluate("scrollY") == 0
    phone.goto(f"{server.url}#/curve")
    phone.reload()
    phone.wait_for_selector("html[data-ready]")
    assert phone.is_visible("#curve")
    assert phone.is_hidden("#draw")
    assert phone.evaluate("scrollY") == 0
    phone.locator("#tab-curve").press("ArrowLeft")
    assert phone.is_visible("#draw")


def test_the_page_names_its_models_and_their_protocol(page: Page) -> None:
    assert "Model omniglot: MetaVRF, context none" in page.inner_text("#draw-model")
    assert "Protocol: inductive" in page.inner_text("#draw-model")
    page.click("#tab-curve")
    for name in ("small-sine", "small-rff"):
        assert f"Model {name}" in page.inner_text("#curve-model")


def test_a_server_that_is_gone_is_named_and_found_again(failing: Page) -> None:
    teach(failing, "tent", "wheel")
    gone = True
    failing.route("**/api/predict", lambda route: route.abort() if gone else route.continue_())
    pen(failing, character("wheel", 0.03))
    sync_api.expect(failing.locator("#notice")).to_contain_text("does not answer")
    gone = False
    expect_best(failing, "B")
    sync_api.expect(failing.locator("#notice")).to_be_hidden()


def test_a_request_that_is_never_answered_does_not_stop_the_page(failing: Page) -> None:
    teach(failing, "tent", "wheel")
    lost: list[Any] = []
    failing.route("**/api/predict", lambda route: route.continue_() if lost else lost.append(route))
    pen(failing, character("wheel", 0.03))
    sync_api.expect(failing.locator("#notice")).to_contain_text("does not answer")
    expect_best(failing, "B")
    sync_api.expect(failing.locator("#notice")).to_be_hidden()


RASTER = "async (strokes) => (await import('/raster.js')).raster(strokes, 28)"


@pytest.mark.parametrize("name", ["tent", "wheel", "stair"])
def test_drawings_reach_the_model_as_omniglot_would_show_them(page: Page, name: str) -> None:
    """The quantiles are those of 600 Omniglot drawings at 28 x 28."""
    seen = np.array(page.evaluate(RASTER, character(name)))
    assert seen.shape == (28, 28)
    assert 11.6 < seen.mean() < 35.2  # ink, 5 % to 95 %
    assert 197 < np.sort(seen.ravel())[-40:].mean() < 254.1  # the darkest pixels, 5 % to 95 %
    rows, columns = np.nonzero(seen > 127)
    long_side = max(np.ptp(rows), np.ptp(columns)) + 1
    assert 0.45 * 28 < long_side < 0.78 * 28  # 10 % to 90 %
    assert abs((rows.min() + rows.max()) / 2 - 13) <= 1
    assert abs((columns.min() + columns.max()) / 2 - 13) <= 1


def test_size_and_place_on_the_pad_do_not_matter(page: Page) -> None:
    large = np.array(page.evaluate(RASTER, character("wheel")))
    small = np.array(page.evaluate(RASTER, moved(character("wheel"), 0.25, 0.7, 0.02)))
    assert np.abs(large - small).max() <= 3


def test_a_dot_stays_a_dot(page: Page) -> None:
    seen = np.array(page.evaluate(RASTER, [[(0.2, 0.9)]]))
    assert 0 < (seen > 127).sum() <= 9
    assert seen[12:15, 12:15].max() > 240
