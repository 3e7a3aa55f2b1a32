"""The charts of a report, as SVG."""
