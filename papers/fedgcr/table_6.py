"""Table 6: PACS, eight methods at factors 1, 5 and 10."""

from papers.fedgcr.published import TABLE_6
from papers.fedgcr.shapes import methods_table

if __name__ == "__main__":
    methods_table(6, "pacs", TABLE_6)
