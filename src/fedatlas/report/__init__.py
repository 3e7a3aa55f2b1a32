"""One HTML page about a run, or comparing several, and the table that the command line prints."""

from fedatlas.report.groups import split_note
from fedatlas.report.page import write_report
from fedatlas.report.tables import results_table

__all__ = ["results_table", "split_note", "write_report"]
