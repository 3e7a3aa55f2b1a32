"""Bringing a new client into a finished run."""
