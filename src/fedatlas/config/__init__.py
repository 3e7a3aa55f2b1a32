"""TOML configs and what they build."""
