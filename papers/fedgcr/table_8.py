"""Table 8: DomainNet, FedGCR with other numbers of groups than there are types."""

from papers.fedgcr.shapes import group_counts_table

if __name__ == "__main__":
    group_counts_table(8, "domainnet")
