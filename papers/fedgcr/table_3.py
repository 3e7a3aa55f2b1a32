"""Table 3: how many clients are grouped with their own type on Digit-Five, by the number of groups T'.

The groups are those of the vectors that FedGCR's clients sent in the last round of a training with T' = T.
"""

from papers.fedgcr.published import TABLE_3
from papers.fedgcr.variants import options_for, said, variant
from papers.options import script
from papers.tables import Cell, Table, measure, write_table


@script
def main() -> None:
    """Print Table 3."""
    title = "Table 3: Digit-Five, cluster accuracy by the number of groups"
    options = options_for(title)
    variants = {factor: variant(options, "digit-five", factor, "fedgcr") for factor in TABLE_3}
    results = measure(list(variants.values()), options)
    last = {
        name: [{**numbers, **numbers["groups"][-1]} if "groups" in numbers else numbers for numbers in found]
        for name, found in results.items()
    }
    rows = {
        f"factor {factor}": [
            Cell(variants[factor].name, paper=paper, key=f"gmm {count}") for count, paper in row.items()
        ]
        for factor, row in TABLE_3.items()
    }
    heads = tuple(f"T' = {count}" for count in TABLE_3[1])
    note = "Vectors of the last round, grouped by a mixture of Gaussians with T' components."
    setting = said(list(variants.values()), options, note)
    write_table(Table(title=title, setting=setting, columns=heads, rows=rows), last, options)


if __name__ == "__main__":
    main()
