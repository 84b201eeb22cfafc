"""The charts of a run in a real browser: legend, pointer, zoom, smoothing and scale hold for all of them."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from support.browser_pages import show
from support.launch import Launch
from support.web_pages import SimulatedRun
from tflaunch.features.history.history_recorder import HistoryWriter
from tflaunch.store.history import Figures, Moment

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

pytestmark = pytest.mark.web

TASKS = ("worker:0", "worker:1", "worker:2")

SHOWN = ["loss", "accuracy", "Steps per second", "CPU", "Memory"]
COLOURED = """([canvas, name]) => {
  const hex = getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const wanted = [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
  const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  let found = 0;
  for (let at = 0; at < data.length; at += 4) {
    if (data[at + 3] > 200 && wanted.every((part, channel) => Math.abs(data[at + channel] - part) < 12)) found += 1;
  }
  return found;
}"""
"""How many dots of a canvas have a colour of the page."""


@pytest.fixture
def charts(page: Page, restarted_run: str) -> Locator:
    """The charts of that run, over steps."""
    page.goto(f"/#/{restarted_run}")
    page.get_by_label("Over").select_option("step")
    page.wait_for_selector(".chart canvas")
    return page.locator(".chart")


def shown_at(page: Page, charts: Locator, part: float) -> list[str]:
    """Return what all charts tell while the pointer is over the first one, a part of its width from the left."""
    box = charts.first.locator(".u-over").bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] * part, box["y"] + box["height"] / 2)
    return [text.replace("\u00a0", " ") for text in charts.locator(".value").all_text_contents()]


def step_at(page: Page, charts: Locator, part: float) -> int:
    """Return the step that the first chart tells there."""
    return int(shown_at(page, charts, part)[0].split()[0])


def test_a_pointer_is_over_all_charts_at_once(page: Page, charts: Locator) -> None:
    """They tell the same step, and what each task had there; over time, a restart is marked with a line."""
    assert [chart.get_attribute("aria-label") for chart in charts.all()] == SHOWN
    said = [text.split() for text in shown_at(page, charts, 0.5)]
    assert len({step for step, *_ in said}) == 1, said
    assert {tuple(names_and_values[::2]) for _, *names_and_values in said} == {TASKS}
    assert len(set(said[0][2::2])) == len(TASKS)
    page.mouse.move(0, 0)
    page.wait_for_function(
        "() => [...document.querySelectorAll('.chart .value')].every((each) => !each.textContent.includes(':'))"
    )
    assert charts.locator(".value").all_text_contents()[0] == "1.000 to 3.000"
    canvas = charts.first.locator("canvas").element_handle()
    assert page.evaluate(COLOURED, [canvas, "--warn"]) == 0
    page.get_by_label("Over").select_option("time")
    canvas = charts.first.locator("canvas").element_handle()
    assert page.evaluate(COLOURED, [canvas, "--warn"]) > 20


def test_metrics_may_have_any_name(page: Page, place: Launch, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one that every object of JavaScript has; a task without it has no curve there."""
    monkeypatch.setenv("TFLAUNCH_HOME", str(place.home))
    run = SimulatedRun(place.home, 2)
    writer, names = HistoryWriter(place.home / "runs" / run.name), ["constructor", "__proto__", "toString"]
    begun = time.time()  # clock: a moment of a run
    for at in range(3):
        odd = Figures(at, metrics=dict.fromkeys(names, 0.5))
        writer.add(Moment(begun + at, {"worker:0": odd, "worker:1": Figures(at, metrics={"loss": at})}))
    show(page, f"/#/{run.name}", ".chart canvas")
    shown = [chart.get_attribute("aria-label") for chart in page.locator(".chart").all()]
    assert shown[:4] == ["loss", *names]
    run.end()


def test_a_curve_is_hidden_and_shown_by_its_colour(page: Page, charts: Locator) -> None:
    """In all charts; the colours of tasks differ, and a name leads to its task."""
    colours = page.eval_on_selector_all(".legend i", "found => found.map((each) => each.style.background)")
    assert len(set(colours)) == len(TASKS)
    for name in TASKS[1:]:
        page.get_by_role("button", name=f"Curves of {name}").click()
    page.mouse.move(0, 0)
    assert charts.locator(".value").all_text_contents()[0] == "1.000"
    assert shown_at(page, charts, 0.5)[0].split()[1] == TASKS[0]
    page.get_by_role("button", name=f"Curves of {TASKS[2]}").click()
    page.mouse.move(0, 0)
    assert charts.locator(".value").all_text_contents()[0] == "1.000 to 3.000"
    assert "/task/worker" in (page.locator(".legend a").first.get_attribute("href") or "")


def test_a_part_is_zoomed_in_all_charts(page: Page, charts: Locator) -> None:
    """By dragging or by keys; a double click, a key or a button shows all again."""
    first, last = step_at(page, charts, 0.02), step_at(page, charts, 0.98)
    whole = page.get_by_role("button", name="Show all")
    assert not whole.is_visible()
    step_at(page, charts, 0.25)
    page.mouse.down()
    step_at(page, charts, 0.5)
    step_at(page, charts, 0.75)
    page.mouse.up()
    assert whole.is_visible()
    assert first < step_at(page, charts, 0.02) < step_at(page, charts, 0.98) < last
    charts.nth(1).locator(".u-over").dblclick()
    assert not whole.is_visible()
    assert step_at(page, charts, 0.02) == first
    charts.nth(2).focus()
    value = charts.nth(2).locator(".value")
    assert value.get_attribute("aria-live") == "polite"
    page.keyboard.press("Home")
    assert (value.text_content() or "").split()[0] == "0"
    page.keyboard.press("ArrowRight")
    assert (value.text_content() or "").split()[0] == "10"
    page.keyboard.press("Home")
    page.keyboard.press("+")
    assert step_at(page, charts, 0.98) < last
    page.keyboard.press("0")
    assert step_at(page, charts, 0.98) == last
    page.keyboard.press("+")
    whole.click()
    assert step_at(page, charts, 0.98) == last


def test_curves_are_smoothed_and_scaled(page: Page, charts: Locator) -> None:
    """The mean of what was before is above a loss that falls; where a value is 0, a scale stays linear."""
    page.get_by_label("Smoothing").fill("0.9")
    page.mouse.move(0, 0)
    low = float((charts.locator(".value").all_text_contents()[0]).split()[0])
    assert 5 < low < 20
    page.get_by_role("button", name="Log scale").click()
    assert page.get_by_role("button", name="Log scale").get_attribute("aria-pressed") == "true"
    assert float((charts.locator(".value").all_text_contents()[0]).split()[0]) == low
    page.get_by_label("Smoothing").fill("0")
    assert charts.locator(".value").all_text_contents()[:2] == ["1.000 to 3.000", "0.9833"]
