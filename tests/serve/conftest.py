"""The page, and a browser to open it in."""

import pytest
from browser import chromium
from page_server import running

from rankcode.serve.static_page import page_files


@pytest.fixture(scope="module")
def url():
    with running(page_files()) as server:
        yield server.url


@pytest.fixture(scope="module")
def browser():
    with chromium() as found:
        yield found
