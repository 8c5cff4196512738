"""The page, and a browser to open it in."""

import pytest
from browser import chromium

from rankcode.serve.static_page import PageServer, page_files
from serving_thread import serving


@pytest.fixture(scope="module")
def url():
    with serving(PageServer(page_files())) as server:
        yield server.url


@pytest.fixture(scope="module")
def browser():
    with chromium() as found:
        yield found
