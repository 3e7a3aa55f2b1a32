"""The files of a run's folder."""
