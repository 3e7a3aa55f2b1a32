"""Figure 3: a map of the clients by their embeddings. The paper's is of CIFAR-100; ``--sets`` chooses."""

from statistics import mode

from fedatlas.atlas import Atlas
from papers.fedpce.measuring import atlas_file
from papers.fedpce.pictures import plane_picture
from papers.fedpce.setting import SETS, options_of, said, variant
from papers.options import Options, script
from papers.tables import measure


def draw(title: str, options: Options) -> None:
    """Draw the picture of a run that was measured."""
    name = f"{variant(title, 'FedPCE', options).key}-{options.seeds[0]}"
    atlas = Atlas.load(atlas_file(options.out, name))
    path = options.out / f"figure-3-{title.lower()}.png"
    plane_picture({title: atlas}, atlas.provenance["added"], path, options)
    print(f"with others than their kind: {', '.join(strangers(atlas)) or 'none'}")


def strangers(atlas: Atlas) -> list[str]:
    """Return the clients of whose k-means group most are of another kind."""
    labels = atlas.groups(len({*atlas.domains})).tolist()
    members = list(zip(labels, atlas.domains, strict=True))
    most = {label: mode(kind for other, kind in members if other == label) for label in labels}
    return [name for name, (label, kind) in zip(atlas.names, members, strict=True) if most[label] != kind]


@script
def main() -> None:
    """Measure what is missing, say how well groups are the known kinds, and draw."""
    options = options_of(__doc__ or "", sets="CIFAR-10")
    print(f"### Figure 3\n\n{said(options)} The paper's is of CIFAR-100.\n")
    for title in options.listed("sets", SETS):
        results = measure([variant(title, "FedPCE", options)], options)
        for numbers in results[f"{title} FedPCE"][:1]:
            if "groups" not in numbers:
                continue
            print(f"{title}: k-means of the embeddings puts {numbers['groups']:.1%} of clients with their kind")
        draw(title, options)


if __name__ == "__main__":
    main()
