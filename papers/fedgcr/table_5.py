"""Table 5: Digit-Five, FedGC alone, FedGR alone, both and neither."""

from papers.fedgcr.shapes import ablation_table

if __name__ == "__main__":
    ablation_table(5, "digit-five")
