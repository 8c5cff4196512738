"""A network of the user's own in the page: a run that the command offers, or an exported file."""

import numpy as np
import pytest
import torch
from browser import visit
from page_answers import as_float, choose, decided, shown, sound, stored, streamed

import rankcode as rc
from rankcode.front_ends import Standardise
from rankcode.serve.static_page import FOLDER, PageServer, page_files
from serving_thread import serving

pytest.importorskip("onnxruntime")
PANEL = "#panel-own"


@pytest.fixture(scope="module")
def page(browser, url):
    with visit(browser, f"{url}#own", reduced_motion="reduce") as page:
        yield page


def open_model(page, path):
    page.set_input_files(f"{PANEL} [data-part=model-file]", path)
    page.get_by_text(f"{path.name} is open.").wait_for()


@pytest.fixture(scope="module")
def series():
    """A network that has learned whether two noisy channels rise or fall."""
    torch.manual_seed(0)
    labels = torch.randint(2, (400,))
    slope = (0.05 * (2 * labels - 1))[:, None, None] * torch.arange(30)[:, None]
    values = 5 + slope + 0.3 * torch.randn(400, 30, 2)
    network = rc.Network(rc.cells.GRU(2, 16), 2)
    network.front_end, network.label_names = Standardise.of([values.flatten(0, 1)]), ("down", "ups & <b>")
    inputs = network.front_end(values)[0]
    rc.fit(network, (inputs, labels), rc.AtSpike(0.9), rc.Training(epochs=6, learning_rate=0.01, progress=False))
    network.rule = rc.Threshold(0.9)
    return network, values


def exported(network, folder, rule=None):
    return rc.export_onnx(network, folder / "model.onnx", rule).path


def answer(page):
    box = page.locator(f"{PANEL} [data-part=answer]:not([data-label=''])")
    box.wait_for()
    data = box.evaluate("element => ({...element.dataset})")
    return data["label"], int(data["steps"])


def read(page, text):
    page.locator(f"{PANEL} textarea").fill(text)
    page.get_by_role("button", name="Read", exact=True).click()


def test_a_series_is_answered_as_by_a_stream(browser, series, tmp_path):
    """The run that `rankcode serve RUN` offers."""
    network, values = series
    files = page_files(exported(network, tmp_path).read_bytes(), "gestures")
    with serving(PageServer(files)) as server, visit(browser, f"{server.url}#own", reduced_motion="reduce") as page:
        assert page.get_by_role("tab", name="Your network").get_attribute("aria-selected") == "true"
        page.get_by_text("gestures is open.").wait_for()
        assert page.inner_text(f"{PANEL} [data-part=fact-labels]") == "down, ups & <b>"
        assert page.inner_text(f"{PANEL} [data-part=fact-reads]") == "series of 2 values a step"
        missing = values[1].double().numpy().copy()
        missing[2:5, 0] = np.nan
        for row in (values[0].double().numpy(), missing):
            read(page, "a,b\n" + "\n".join(",".join(map(repr, step)) for step in row.tolist()))
            label, steps, _ = decided(network, row)
            page.wait_for_selector(f"{PANEL} [data-part=answer][data-steps='{steps}']")
            assert answer(page) == (network.label_names[label], steps)
        slider = page.locator(f"{PANEL} [data-part=theta]")
        slider.press("End")
        label, steps, _ = decided(network, row, rc.Threshold(float(slider.get_attribute("aria-valuetext"))))
        page.wait_for_selector(f"{PANEL} [data-part=answer][data-steps='{steps}']")
        assert answer(page) == (network.label_names[label], steps)


def test_numbers_that_cannot_be_read(page, series, tmp_path):
    open_model(page, exported(series[0], tmp_path))
    for text, said in {
        "": "There are no numbers yet.",
        "1,2\n3": "Line 2 has 1 number, and the network reads 2 a step.",
        "1 2\n3 x": "Line 2: “x” is not a number.",
        "1\t1e999\n2\t2": "Line 1: “1e999” is not a number.",
    }.items():
        read(page, text)
        page.locator(f"{PANEL} [data-part=error]", has_text=said).wait_for()


def test_a_rule_with_a_memory_decides_by_the_file(page, series, tmp_path):
    network, values = series
    rule = rc.Patience(rc.Threshold(0.8), 3)
    row = values[3].double().numpy()
    np.savetxt(tmp_path / "row.csv", row, delimiter=";")
    path = exported(network, tmp_path, rule).rename(tmp_path / "patient.onnx")
    open_model(page, path)
    assert not page.locator(f"{PANEL} [data-part=theta]").is_visible()
    choose(page, tmp_path / "row.csv", PANEL)
    label, steps, fired = decided(network, row, rule)
    assert answer(page) == (network.label_names[label], steps) and fired


def test_a_network_for_sound(page, tmp_path):
    open_model(page, FOLDER / "models" / "speech-commands.onnx")
    choose(page, stored(tmp_path / "sound.wav", sound(seed=2)), PANEL)
    assert shown(page, PANEL) == streamed(rc.load("speech-commands"), as_float(sound(seed=2)))


def test_files_that_are_no_networks(page, tmp_path):
    (tmp_path / "text.onnx").write_text("nothing")
    content = (FOLDER / "models" / "spotting-rank-coded.onnx").read_bytes()
    (tmp_path / "cut.onnx").write_bytes(content[-2000:])
    (tmp_path / "metadata.onnx").write_bytes(content[:-40])
    for name, said in {
        "text": "was not exported by rankcode",
        "cut": "cannot be loaded",
        "metadata": "The end of this file is damaged",
    }.items():
        page.set_input_files(f"{PANEL} [data-part=model-file]", tmp_path / f"{name}.onnx")
        page.locator(f"{PANEL} [data-part=model-error]", has_text=said).wait_for()
