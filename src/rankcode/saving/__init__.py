"""Everything that is written to disk and read back: models, run folders, and their descriptions."""
