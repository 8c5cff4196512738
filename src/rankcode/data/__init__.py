"""Data: sources of batches, reading of files, cached features, downloads."""

from rankcode.data.downloads import download
from rankcode.data.sources import Arrays, BadData, Batch, Generated, Loader, Packed, Source

__all__ = ["Arrays", "BadData", "Batch", "Generated", "Loader", "Packed", "Source", "download"]
