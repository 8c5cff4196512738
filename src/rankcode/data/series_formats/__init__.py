"""The formats of series files, one module each. To add one, write its reader and list it here.

A reader takes a path and `Options` and returns the splits of the file, 'train' if it holds a single one.
"""

from rankcode.data.series_formats.arff import read_arff
from rankcode.data.series_formats.npz import read_npz
from rankcode.data.series_formats.ts import read_ts
from rankcode.data.series_formats.tsv import read_tsv

# If a folder holds a set in several formats, the first of these is read.
READERS = {".ts": read_ts, ".tsv": read_tsv, ".arff": read_arff, ".npz": read_npz}
