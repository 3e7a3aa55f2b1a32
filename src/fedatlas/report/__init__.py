"""One HTML page about clients and runs, and the table that the command line prints."""

from typing import TYPE_CHECKING

from fedatlas.registry import lazy_exports

if TYPE_CHECKING:
    from fedatlas.report import atlas_pictures
    from fedatlas.report.atlas_pictures import domain_picture, domain_similarity, save_picture, similarity_picture
    from fedatlas.report.colors import DOMAINS, nth
    from fedatlas.report.groupings import model_groups
    from fedatlas.report.groups import split_note
    from fedatlas.report.intervals import over_seeds
    from fedatlas.report.page import write_page, write_report
    from fedatlas.report.served import _newcomer
    from fedatlas.report.tables import results_table, table_note

__all__ = [
    "DOMAINS",
    "_newcomer",
    "atlas_pictures",
    "domain_picture",
    "domain_similarity",
    "model_groups",
    "nth",
    "over_seeds",
    "results_table",
    "save_picture",
    "similarity_picture",
    "split_note",
    "table_note",
    "write_page",
    "write_report",
]

__getattr__, __dir__ = lazy_exports(__name__)
