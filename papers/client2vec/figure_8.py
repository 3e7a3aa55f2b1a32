"""Figure 8: one matrix or two layers as the projection of the index network (GLOBAL)."""

from papers.client2vec.figures import draw_atlases
from papers.client2vec.indexing import index_spec
from papers.client2vec.settings import SETTINGS, read
from papers.options import script

CLAIM = "The paper: both work."


@script
def main() -> None:
    """Draw and print the mean cosines."""
    options = read("Figure 8: the projection of the index network", settings="pacs,digit_five")
    for setting in options.listed("settings", SETTINGS):
        specs = {
            "linear": index_spec(setting, "global", options),
            "two layers": index_spec(setting, "global", options, projection="mlp"),
        }
        draw_atlases(f"Figure 8, {setting}", CLAIM, specs, options)


if __name__ == "__main__":
    main()
