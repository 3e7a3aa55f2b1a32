"""Table 11: DomainNet, FedGCR with other shares of the group's loss (delta)."""

from papers.fedgcr.shapes import deltas_table

if __name__ == "__main__":
    deltas_table(11, "domainnet")
