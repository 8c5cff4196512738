"""Answers to any number of files or rows: in bounded memory, by several processes, resumable.

This process finds the rows, in order, and cuts them into shards. A worker answers a shard with the code of `predict`
and returns the answers as a small Parquet file, a part. This process alone writes the parts, each completely or not at
all, to the folder OUTPUT.parts. A part records a key of the model, the rule and the rows of its shard: after a kill,
the same call keeps the parts whose key has not changed and computes the others. At the end the parts are joined, in
order. No more shards are in memory than there are workers.
"""

from __future__ import annotations

import io
import json
import time
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from rankcode.data.sources import BadData, digest
from rankcode.inference import rule_for
from rankcode.network import Network
from rankcode.prediction import answers_to, raw_rows
from rankcode.progress import Progress
from rankcode.ray_workers import RayWorker, RayWorkers
from rankcode.rules import Rule
from rankcode.saving.description import describe
from rankcode.saving.files import alone_in, whole_file, write_whole
from rankcode.saving.model_file import checksum
from rankcode.training.distributed import own_device

SHARD_ROWS = 1024  # four batches of `predict`: seconds of work, which a kill may cost
SHARD_BYTES = 1 << 24  # of rows that are sent to a worker; those of sound are sent as paths
ROW_GROUP = 1 << 16  # answers that are compressed together in the file
MAX_ATTEMPTS = 3  # of a shard whose worker dies
AUTHOR = "rankcode predict"


class Shard(NamedTuple):
    number: int
    key: str
    rows: list[tuple[str, Any]]  # names, and what a front end reads
    left_out: list[str]  # data before the last of these rows that could not be used, with reasons


class Outcome(NamedTuple):
    answers: int
    kept: int  # of them, those of an earlier call
    left_out: int
    seconds: float
    nodes: list[str]  # of the Ray cluster, of each worker


def predict_to_parquet(
    network: Network,
    data: Any,
    output: str | Path,
    rule: Rule | None = None,
    workers: int | None = None,
    address: str | None = None,
    device: str = "auto",
    progress: bool = True,
) -> Outcome:
    """Write the answers to raw data, as `predict` takes it, to a Parquet file with a row for each answer.

    The same call goes on with one that was killed. Files and rows that cannot be used are left out, and listed in a
    text file beside the output (`left_out_file`). `workers`: how many processes of Ray answer, one core each, on this
    machine or on the cluster at `address`, there by default as many as fit; without both, this process answers.
    """
    output, rule, begun = Path(output), rule_for(network, rule), time.monotonic()
    parts = Parts(output.with_name(f"{output.name}.parts"), network)
    try:
        with alone_in(parts.folder, wait=False), Progress(None, progress) as bar:
            counts = Counter[str]()

            def missing() -> Iterator[Shard]:
                """The shards that have no part yet."""
                for shard in _shards(network, rule, data):
                    counts["shards"] += 1
                    if (found := parts.find(shard)) is None:
                        yield shard
                    else:
                        counts.update(answers=found, kept=found)

            nodes: list[str] = []
            if workers is None and address is None:
                worker = AnswerWorker(None, network, rule, str(own_device(device)))
                found = ((shard, worker.work(shard)) for shard in missing())
            else:
                found = _answered_on_ray(missing(), nodes, network, rule, parts.folder, workers, address, device)
            for shard, (answers, left_out, part) in found:
                parts.write(shard, part)
                counts.update(answers=answers, left_out=left_out)
                if bar.due(counts["answers"]):
                    rate = (counts["answers"] - counts["kept"]) / (time.monotonic() - begun)
                    bar.show(counts["answers"], f"{counts['answers']:,} answers, {rate:,.0f} a second")
            counts["left_out"] = parts.join(output, counts["shards"])
            parts.remove()
    except BlockingIOError:
        raise BadData(f"{output} is being written by another process") from None
    return Outcome(counts["answers"], counts["kept"], counts["left_out"], time.monotonic() - begun, nodes)


def left_out_file(output: str | Path) -> Path:
    """The text file that lists what could not be used: answers.left-out.txt for answers.parquet."""
    return Path(output).with_suffix(".left-out.txt")


def _shards(network: Network, rule: Rule, data: Any) -> Iterator[Shard]:
    weights = {name: tensor.detach().cpu() for name, tensor in network.state_dict().items()}
    model = checksum({"network": describe(network), "rule": describe(rule)}, weights)
    rows: list[tuple[str, Any]] = []
    left_out: list[str] = []
    number = size = 0
    for name, raw in raw_rows(network, data, left_out):
        rows.append((name, raw))
        size += getattr(raw, "nbytes", 0)
        if len(rows) == SHARD_ROWS or size >= SHARD_BYTES:
            yield Shard(number, _key(model, rows), rows, left_out.copy())
            rows, size, number = [], 0, number + 1
            left_out.clear()
    if rows or left_out:
        yield Shard(number, _key(model, rows), rows, left_out)


def _key(model: str, rows: list[tuple[str, Any]]) -> str:
    """Changes with the model and with the names of the rows, and with their content where they are not files."""
    content = ([] if isinstance(raw, str | Path) else [np.asarray(raw)] for _, raw in rows)
    return digest([model, *(_encodable(name) for name, _ in rows), *chain.from_iterable(content)])


def _encodable(name: str) -> str:
    """The name with bytes that are no text escaped."""
    return name.encode(errors="backslashreplace").decode()


class AnswerWorker(RayWorker):
    """Answers shards: in this process, or as an actor of Ray."""

    def __init__(self, threads: int | None, network: Network, rule: Rule, device: str):
        if threads is not None:
            torch.set_num_threads(threads)
        self.network, self.rule = network.to(own_device(device)), rule

    def work(self, shard: Shard) -> tuple[int, int, bytes]:
        """How many rows were answered and how many left out, and the part."""
        import pyarrow as pa
        from pyarrow import parquet

        left_out = shard.left_out.copy()
        found = answers_to(self.network, shard.rows, self.rule, left_out)
        answers = [(_encodable(name), answer) for name, _, answer in found]
        columns: dict[str, list[Any]] = {"from": [name for name, _ in answers]}
        for column in ("label", "probability", "steps", "fired", "milliseconds"):
            columns[column] = [getattr(answer, column) for _, answer in answers]
        for name in self.network.class_names:
            columns[f"probability_{name}"] = [answer.probabilities[name] for _, answer in answers]
        schema = answer_schema(self.network)
        notes = {"key": shard.key, "left_out": json.dumps(left_out)}
        table = pa.table({name: columns[name] for name in schema.names}, schema.with_metadata(notes))
        content = io.BytesIO()
        parquet.write_table(table, content)
        return len(answers), len(left_out), content.getvalue()


def answer_schema(network: Network) -> Any:
    """The columns of the answers of a network. Probabilities have 32 bits, as the network computes them."""
    import pyarrow as pa

    one = torch.tensor([1])
    sound = network.front_end is not None and network.front_end.heard(one, one) is not None
    kinds = {"from": pa.string(), "label": pa.string(), "probability": pa.float32(), "steps": pa.int64()}
    kinds |= {"fired": pa.bool_(), **({"milliseconds": pa.float64()} if sound else {})}
    return pa.schema(kinds | {f"probability_{name}": pa.float32() for name in network.class_names})


def _answered_on_ray(
    shards: Iterator[Shard],
    nodes: list[str],
    network: Network,
    rule: Rule,
    notes: Path,
    workers: int | None,
    address: str | None,
    device: str,
) -> Iterator[tuple[Shard, tuple[int, int, bytes]]]:
    """The shards, in any order, with what a worker returned for each. The nodes of the workers go into `nodes`."""
    waiting = deque(shard for shard in [next(shards, None)] if shard is not None)
    if not waiting:
        return
    running: dict[int, Shard] = {}
    deaths = Counter[int]()
    use_gpus = device != "cpu"
    pool = RayWorkers(AnswerWorker, (network, rule, device), notes, 1, None, address, use_gpus, sharing=workers or 1)
    with pool:
        pool.nodes = nodes
        if not pool.gpus_per_run and device == "auto":
            pool.arguments = network, rule, "cpu"
        while waiting or running:
            while waiting and pool.has_room(workers or 1 << 30):
                shard = waiting.popleft()
                running[shard.number] = shard
                pool.give(shard.number, shard)
                if not waiting:
                    waiting.extend(each for each in [next(shards, None)] if each is not None)
            for number, result, reason in pool.wait(1.0):
                shard = running.pop(number)
                if reason is None:
                    yield shard, result
                    continue
                if result is not None:
                    raise result
                deaths[number] += 1
                if deaths[number] == MAX_ATTEMPTS:
                    first, last = shard.rows[0][0], shard.rows[-1][0]
                    raise RuntimeError(f"{reason}, {MAX_ATTEMPTS} times, with the rows from {first} to {last}")
                waiting.appendleft(shard)


class Parts:
    """The answers that are there, in a folder with a file for each shard."""

    def __init__(self, folder: Path, network: Network):
        from pyarrow import ArrowException, parquet

        self.folder, self.schema, self.parquet, self.damage = folder, answer_schema(network), parquet, ArrowException

    def _file(self, number: int) -> Path:
        return self.folder / f"{number:06}.parquet"

    def find(self, shard: Shard) -> int | None:
        """How many answers there are to a shard; None if its part is missing, or of other rows or another model."""
        try:
            with self.parquet.ParquetFile(self._file(shard.number)) as file:
                same = file.schema_arrow.metadata.get(b"key") == shard.key.encode()
                return file.metadata.num_rows if same else None
        except (OSError, self.damage):
            return None

    def write(self, shard: Shard, part: bytes) -> None:
        write_whole(self._file(shard.number), part)

    def join(self, output: Path, count: int) -> int:
        """Write the answers of so many parts to one file, and what was left out to another. How much was left out."""
        import pyarrow as pa

        total, groups = 0, list[Any]()
        schema, listed = self.schema.with_metadata({"written by": AUTHOR}), left_out_file(output)
        with (
            whole_file(listed) as lines,
            whole_file(output) as file,
            self.parquet.ParquetWriter(file, schema) as writer,
        ):
            lines.write(f"# left out by {AUTHOR}:\n".encode())
            for number in range(count):
                table = self.parquet.read_table(self._file(number))
                left_out = json.loads(table.schema.metadata[b"left_out"])
                lines.writelines(_encodable(" ".join(line.split())).encode() + b"\n" for line in left_out)
                total += len(left_out)
                groups.append(table.replace_schema_metadata(schema.metadata))
                if number == count - 1 or sum(map(len, groups)) >= ROW_GROUP:
                    writer.write_table(pa.concat_tables(groups), ROW_GROUP)
                    groups = []
        if total == 0:
            listed.unlink()
        return total

    def remove(self) -> None:
        for file in self.folder.glob("[0-9]*.parquet"):
            file.unlink()
        with suppress(OSError):
            self.folder.rmdir()


def is_own(output: Path) -> bool:
    """Whether `predict_to_parquet` wrote a file."""
    from pyarrow import ArrowException, parquet

    try:
        return (parquet.read_schema(output).metadata or {}).get(b"written by") == AUTHOR.encode()
    except (ArrowException, OSError):
        return False
