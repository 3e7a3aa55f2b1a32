"""Table 2: DomainNet, eight methods at factors 1, 5 and 10; its pictures are in domainnet/DOMAIN/CLASS/."""

from papers.fedgcr.published import TABLE_2
from papers.fedgcr.shapes import methods_table

if __name__ == "__main__":
    methods_table(2, "domainnet", TABLE_2)
