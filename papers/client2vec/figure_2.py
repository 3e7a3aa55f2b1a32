"""Figure 2: heat maps of the clients' similarities, by the whole index and by its feature half, of both strategies."""

from papers.client2vec.figures import draw_atlases
from papers.client2vec.indexing import index_spec
from papers.client2vec.settings import SETTINGS, STRATEGIES, read
from papers.options import script

CLAIM = "The paper: clients of one domain have a cosine near 1, blocks are clear, GLOBAL's more so."


@script
def main() -> None:
    """Draw and print the mean cosines."""
    options = read("Figure 2: how alike clients are", settings="pacs,digit_five")
    for setting in options.listed("settings", SETTINGS):
        specs = {title: index_spec(setting, strategy, options) for title, strategy in STRATEGIES.items()}
        draw_atlases(f"Figure 2, {setting}", CLAIM, specs, options, halves=(None, "feature"))


if __name__ == "__main__":
    main()
