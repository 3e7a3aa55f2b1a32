"""Figure 1: a map of the clients by FedBN's scales and shifts of the first, the 12th and the last norm."""

from fedatlas.atlas import Atlas
from papers.fedpce.measuring import NORMS, atlas_file
from papers.fedpce.pictures import plane_picture
from papers.fedpce.setting import options_of, said, variant
from papers.options import Options, script
from papers.tables import measure


def draw(options: Options) -> None:
    """Draw the picture of a run that was measured."""
    name = f"{variant('CIFAR-10', 'FedBN', options).key}-{options.seeds[0]}"
    atlases = {f"{layer} norm": Atlas.load(atlas_file(options.out, name, f"-{layer}")) for layer in NORMS}
    newcomers = next(iter(atlases.values())).provenance["added"]
    plane_picture(atlases, newcomers, options.out / "figure-1.png", options)


@script
def main() -> None:
    """Measure what is missing, and draw."""
    options = options_of(__doc__ or "")
    print(f"### Figure 1\n\n{said(options)}\n")
    results = measure([variant("CIFAR-10", "FedBN", options)], options)
    for numbers in results["CIFAR-10 FedBN"][:1]:
        for layer in NORMS if "groups" in numbers else ():
            print(f"k-means by the {layer} norm: {numbers[f'groups-{layer}']:.1%} of clients with their kind")
    draw(options)


if __name__ == "__main__":
    main()
