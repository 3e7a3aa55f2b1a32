"""One HTML page about clients and runs, and the table that the command line prints."""

from fedatlas.report.groups import split_note
from fedatlas.report.page import write_page, write_report
from fedatlas.report.tables import results_table, table_note

__all__ = ["results_table", "split_note", "table_note", "write_page", "write_report"]
