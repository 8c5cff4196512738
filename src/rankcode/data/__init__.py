"""Where data comes from: sources of batches, files that are read, features that are cached, downloads."""

from rankcode.data.sources import Arrays, BadData, Batch, Generated, Loader, Packed, Source

__all__ = ["Arrays", "BadData", "Batch", "Generated", "Loader", "Packed", "Source"]
