"""Checks of custom parts, and tiny federations to try them on."""
