"""Table 10: Digit-Five, FedGCR with other shares of the group's loss (delta)."""

from papers.fedgcr.shapes import deltas_table

if __name__ == "__main__":
    deltas_table(10, "digit-five")
