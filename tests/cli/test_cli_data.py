"""`rankcode data`."""

import hashlib
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
from small_data import CPU, QUICK, says

import rankcode as rc
from rankcode.cli.main import main
from rankcode.data import downloads
from rankcode.saving.run_folder import RunFolder
from rankcode.tasks import TemporalMNIST, temporal_mnist
from serving_thread import serving


@pytest.fixture
def published(tmp_path, monkeypatch):
    """A server on this machine with the files of a small MNIST."""
    random, folder, files = np.random.default_rng(0), tmp_path / "published", []
    folder.mkdir()
    for split, count in (("train", 40), ("t10k", 20)):
        labels = np.arange(count) % 10
        images = random.integers(0, 40, (count, 28, 28))
        images[np.arange(count), 2 * labels + 2] = 255  # a line that tells the digit
        for kind, array in (("images-idx3", images), ("labels-idx1", labels)):
            sizes = b"".join(size.to_bytes(4, "big") for size in array.shape)
            content = bytes([0, 0, 8, array.ndim]) + sizes + array.astype(np.uint8).tobytes()
            (folder / f"{split}-{kind}-ubyte").write_bytes(content)

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_):
            pass

    monkeypatch.setattr(temporal_mnist, "HELD_OUT", 10)
    monkeypatch.setenv("no_proxy", "*")
    with serving(ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder)))) as server:
        for path in sorted(folder.iterdir()):
            content, address = path.read_bytes(), f"http://127.0.0.1:{server.server_port}/{path.name}"
            checksum = hashlib.sha256(content).hexdigest()
            files.append(downloads.PublishedFile(path.name, (address,), len(content), checksum))
        monkeypatch.setitem(downloads.DATA_SETS, "mnist", downloads.DataSet(tuple(files)))
        yield folder


def test_data_is_downloaded_and_trained_on(published, tmp_path, capsys):
    main(["data", "mnist"])
    assert capsys.readouterr().out == f"mnist is in {tmp_path / 'kept' / 'mnist'}\n"
    assert len(list((tmp_path / "kept" / "mnist").iterdir())) == 4
    main(["train", "temporal-mnist", *QUICK, "--examples", "30", "--folder", "run"])
    main(["evaluate", "run", *CPU])
    assert "on 20 test rows" in capsys.readouterr().out
    written = RunFolder("run").config()
    assert written["task"] == {"kind": "TemporalMNIST", "data": None, "steps": 10, "flat": True, "augment": False}
    network = RunFolder("run").model()
    images = TemporalMNIST().test.inputs
    assert len(rc.predict(network, images)) == 20
    assert {each.label for each in rc.predict(network, images)} <= set("0123456789")


def test_data_is_put_where_it_is_asked_for_and_found_there(published, tmp_path, capsys):
    main(["data", "mnist", "--to", "digits"])
    assert capsys.readouterr().out == f"mnist is in {tmp_path / 'here' / 'digits'}\n"
    arguments = ["--cell", "conv-lstm", *QUICK, "--examples", "16"]
    main(["train", "temporal-mnist", "--data", "digits", *arguments, "--folder", "run"])
    written = RunFolder("run").config()["task"]
    assert written["data"] == str(tmp_path / "here" / "digits") and written["flat"] is False
    Path("digits").rename("moved")
    says(["evaluate", "run", *CPU], "rankcode data mnist --to", "digits")
    capsys.readouterr()
    main(["evaluate", "run", "--data", "moved", *CPU])
    assert "on 20 test rows" in capsys.readouterr().out


def test_data_that_cannot_be_had_is_one_line(published, monkeypatch):
    monkeypatch.setattr(downloads, "PAUSE", 0.0)
    (published / "t10k-labels-idx1-ubyte").unlink()
    says(["data", "mnist"], "t10k-labels-idx1-ubyte", "404")
