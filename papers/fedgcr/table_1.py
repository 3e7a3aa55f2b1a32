"""Table 1: Digit-Five, eight methods at factors 1, 5 and 10."""

from papers.fedgcr.published import TABLE_1
from papers.fedgcr.shapes import methods_table

if __name__ == "__main__":
    methods_table(1, "digit-five", TABLE_1)
