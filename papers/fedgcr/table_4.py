"""Table 4: Digit-Five, FedGCR with other numbers of groups than there are types."""

from papers.fedgcr.shapes import group_counts_table

if __name__ == "__main__":
    group_counts_table(4, "digit-five")
