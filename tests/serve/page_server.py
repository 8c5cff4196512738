"""The page, served in a thread."""

import threading
from contextlib import contextmanager

from rankcode.serve.static_page import PageServer


@contextmanager
def running(files):
    with PageServer(files) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
