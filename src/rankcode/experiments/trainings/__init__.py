"""The training runs that figures share, one module for each task."""
