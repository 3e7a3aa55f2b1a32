"""One HTML page about clients and runs, and the table that the command line prints."""

from typing import TYPE_CHECKING

from fedatlas.registry import lazy_exports

if TYPE_CHECKING:
    from fedatlas.report import atlas_pictures
    from fedatlas.report.groups import split_note
    from fedatlas.report.page import write_page, write_report
    from fedatlas.report.tables import results_table, table_note

__all__ = ["atlas_pictures", "results_table", "split_note", "table_note", "write_page", "write_report"]

__getattr__, __dir__ = lazy_exports(__name__)
