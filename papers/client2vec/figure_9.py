"""Figure 9: the mean cosine of beta^f between every two domains (GLOBAL)."""

import numpy as np

from fedatlas.report import domain_picture, domain_similarity
from papers.client2vec.figures import draw_atlases, slug
from papers.client2vec.indexing import index_spec
from papers.client2vec.settings import SETTINGS, read
from papers.drawing import keep
from papers.options import script

CLAIM = "The paper, on DomainNet: Real is near Clipart, Painting and Sketch, and far from Infograph and Quickdraw."


@script
def main() -> None:
    """Draw and print the table of domains."""
    options = read("Figure 9: how alike domains are", settings="pacs,digit_five")
    for setting in options.listed("settings", SETTINGS):
        title = f"Figure 9, {setting}"
        for atlas in draw_atlases(title, CLAIM, {"GLOBAL": index_spec(setting, "global", options)}, options).values():
            keep(domain_picture(atlas, "feature"), options.out / f"{slug(title)}-domains.png", options)
            found = domain_similarity(atlas, "feature")
            print(f"| | {' | '.join(found.domains)} |\n{'|---' * (len(found.domains) + 1)}|")
            for domain, row in zip(found.domains, np.round(found.cosines, 2), strict=True):
                print(f"| {domain} | {' | '.join(f'{value:.2f}' for value in row)} |")
            print()


if __name__ == "__main__":
    main()
