"""Figure 7: the index with and without the diversity loss, at two numbers of epochs (GLOBAL)."""

from papers.client2vec.figures import draw_atlases
from papers.client2vec.indexing import index_spec
from papers.client2vec.settings import SETTINGS, read
from papers.options import script

CLAIM = "The paper: without the loss, all clients look the same."


@script
def main() -> None:
    """Draw and print the mean cosines."""
    options = read("Figure 7: without the diversity loss", settings="pacs,digit_five")
    epochs = options.extra["index_epochs"]
    for setting in options.listed("settings", SETTINGS):
        specs = {}
        for length in (epochs, 2 * epochs):
            specs[f"with, {length} epochs"] = index_spec(setting, "global", options, epochs=length)
            losses = ["sim", "orth", "recon"]
            specs[f"without, {length} epochs"] = index_spec(setting, "global", options, epochs=length, losses=losses)
        draw_atlases(f"Figure 7, {setting}", CLAIM, specs, options)


if __name__ == "__main__":
    main()
