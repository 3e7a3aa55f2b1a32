"""Data sets: by name, from files, from arrays."""
