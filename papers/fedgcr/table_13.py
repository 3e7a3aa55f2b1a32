"""Table 13: PACS, FedGC alone, FedGR alone, both and neither."""

from papers.fedgcr.shapes import ablation_table

if __name__ == "__main__":
    ablation_table(13, "pacs")
