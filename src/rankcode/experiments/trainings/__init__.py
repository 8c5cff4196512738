"""The trainings that figures share, one module for each task."""
