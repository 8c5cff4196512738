"""The formats of series files, one module each. To add one, write its reader and list it here.

A reader takes a path and `Options` and returns the splits of the file, 'train' if it holds a single one.
"""

from rankcode.data.series_formats.arff import read_arff
from rankcode.data.series_formats.csv import read_csv
from rankcode.data.series_formats.npy import npy_blocks, read_npy
from rankcode.data.series_formats.npz import read_npz
from rankcode.data.series_formats.parquet import parquet_blocks, read_parquet
from rankcode.data.series_formats.ts import read_ts
from rankcode.data.series_formats.tsv import read_tsv

# If a folder holds a set in several formats, the first of these is read.
ARCHIVES = {".ts": read_ts, ".tsv": read_tsv, ".arff": read_arff, ".npz": read_npz}
# These may hold anything: in a folder, they are read only if there are no files of the formats above.
READERS = {**ARCHIVES, ".parquet": read_parquet, ".csv": read_csv, ".npy": read_npy}
# Large files of these formats are read in blocks to predict on.
BLOCK_READERS = {".parquet": parquet_blocks, ".npy": npy_blocks}
