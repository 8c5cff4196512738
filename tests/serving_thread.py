"""A server of the standard library in a thread."""

import threading
from contextlib import contextmanager


@contextmanager
def serving(server):
    with server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
