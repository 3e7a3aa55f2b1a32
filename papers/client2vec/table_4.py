"""Table 4: three networks over a federation of domains; the appendix's Table 9 has the same numbers."""

from papers.client2vec.table_9 import main

if __name__ == "__main__":
    main(4)
