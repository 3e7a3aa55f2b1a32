"""Table 12: DomainNet, FedGC alone, FedGR alone, both and neither."""

from papers.fedgcr.shapes import ablation_table

if __name__ == "__main__":
    ablation_table(12, "domainnet")
