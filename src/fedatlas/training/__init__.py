"""The rounds of a run, from its settings to its records."""
