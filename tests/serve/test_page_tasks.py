"""The paper's tasks in the page: both networks decide as in Python."""

import json

import numpy as np
import pytest
from browser import visit
from page_answers import decided

import rankcode as rc
from rankcode.serve.build_page import NETWORKS, TASKS
from rankcode.serve.static_page import page_files

PANEL = "#panel-tasks"


@pytest.fixture(scope="module")
def page(browser, url):
    with visit(browser, f"{url}#tasks", reduced_motion="reduce") as page:
        yield page


def choose_task(page, name):
    page.locator(f"input[value={name}]").evaluate("choice => choice.click()")


def result(page, network):
    """(label, steps) of a network, once it has answered."""
    page.wait_for_selector(f"{PANEL} [data-part={network}]:not([data-steps=''])")
    data = page.locator(f"{PANEL} [data-part={network}]").evaluate("row => ({...row.dataset})")
    return int(data["label"]), int(data["steps"])


def table(page):
    return page.locator(f"{PANEL} [data-part=rows]").text_content()


def values(page, steps, before=""):
    """The sequence that is shown, once it is another than that of the table `before`."""
    page.wait_for_function(
        """([steps, before]) => {
            const rows = document.querySelector("[data-part=rows]");
            return rows.childElementCount === steps && rows.textContent !== before;
        }""",
        arg=[steps, before],
    )
    cells = page.locator(f"{PANEL} [data-part=rows] td:nth-child(2)").all_text_contents()
    return np.array(cells, np.float32)[:, None]


@pytest.mark.parametrize(("name", "steps"), [("two-sequence", 40), ("spotting", 25)])
def test_both_networks_decide_as_in_python(page, name, steps):
    ranked, conventional = (rc.load(NETWORKS[network]) for network in TASKS[name])
    numbers = json.loads(page_files()["/numbers.json"].content)["tasks"][name]
    choose_task(page, name)
    sequence = values(page, steps)
    for _ in range(3):
        assert result(page, "ranked") == decided(ranked, sequence)[:2]
        assert result(page, "conventional") == decided(conventional, sequence, rc.Never())[:2]
        before = table(page)
        page.get_by_role("button", name="New sequence").click()
        sequence = values(page, steps, before)
    slider = page.locator(f"{PANEL} [data-part=theta]")
    for key in ("Home", "End"):
        slider.press(key)
        theta = float(slider.get_attribute("aria-valuetext"))
        expected = decided(ranked, sequence, rc.Threshold(theta))
        page.wait_for_selector(f"{PANEL} [data-part=ranked][data-steps='{expected[1]}']")
        assert result(page, "ranked") == expected[:2]
        (point,) = (each for each in numbers["ranked"] if each["theta"] == theta)
        said = f"{100 * point['accuracy']:.1f} % right after {point['time']:.1f} steps"
        page.locator(f"{PANEL} [data-part=curve-text]", has_text=said).wait_for()
    page.get_by_role("button", name="Play 500 at once").click()
    page.get_by_text(f"500 sequences at θ = {theta:g}: rank-coded").wait_for()


def test_digits(page):
    """One of each is recognised, early, and so is one that is drawn with the mouse."""
    choose_task(page, "digits")
    page.wait_for_selector(f"{PANEL} [data-part=conventional][data-label='3']")
    for digit in range(10):
        page.get_by_role("button", name=f"Draw a {digit}").click()
        page.wait_for_selector(f"{PANEL} [data-part=conventional][data-label='{digit}']")
        label, steps = result(page, "ranked")
        assert label == digit and 1 <= steps <= 5
    page.get_by_role("button", name="Clear").click()
    box = page.locator(f"{PANEL} [data-part=pad]").bounding_box()
    page.mouse.move(box["x"] + 0.5 * box["width"], box["y"] + 0.15 * box["height"])
    page.mouse.down()
    page.mouse.move(box["x"] + 0.47 * box["width"], box["y"] + 0.85 * box["height"], steps=12)
    page.mouse.up()
    page.wait_for_selector(f"{PANEL} [data-part=conventional][data-label='1']")
    assert result(page, "ranked")[0] == 1
