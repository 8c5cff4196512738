"""The comparison: our classifiers and those of others, on the same splits and seeds (docs/compare.md).

`methods.py` has the table of methods, `running.py` runs them and keeps the results, `ranks.py` and `report.py` compare
them. Methods of aeon and tslearn run in a separate process (`peers.py`), with a Python that has them installed.
"""
