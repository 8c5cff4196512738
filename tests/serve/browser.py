"""Chromium for the tests of the page. Without it they are skipped, unless RANKCODE_NEEDS_BROWSER is set, as in CI."""

import os
import shutil
from contextlib import contextmanager

import pytest

FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]
FLAGS += ["--disable-sync", "--no-first-run", "--mute-audio"]
FAKE_MICROPHONE = ["--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream"]


@contextmanager
def chromium(*flags):
    path = shutil.which("chromium") or shutil.which("google-chrome")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        path = None
    if path is None:
        missing = "the tests of the page need Playwright and Chromium"
        pytest.fail(missing) if os.environ.get("RANKCODE_NEEDS_BROWSER") else pytest.skip(missing)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=[*FLAGS, *flags])
        yield browser
        browser.close()


@contextmanager
def visit(browser, url, **options):
    """A tab with the page. At the end there must have been no error, and no request to anywhere else."""
    context = browser.new_context(**options)
    context.set_default_timeout(60_000)  # a busy machine may be slow
    page = context.new_page()
    faults, requests = [], []
    page.on("console", lambda said: faults.append(said.text) if said.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.on("request", lambda request: requests.append(request.url))
    page.goto(url)
    yield page
    origin = url.partition("#")[0]
    assert faults == []
    assert [each for each in requests if not each.startswith((origin, f"blob:{origin}"))] == []
    context.close()
