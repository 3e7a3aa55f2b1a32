"""Figure 3: a t-SNE map of the type-specific prompts that GC-Net makes of test images, coloured by domain.

The paper's is of Digit-Five and DomainNet; PACS stands in for DomainNet where the data folder lacks it.
"""

from typing import Any

import numpy as np
import torch

from fedatlas.client import ResidentData
from fedatlas.errors import UsageError
from fedatlas.models import TypePrompted
from fedatlas.seeds import derive
from papers.drawing import blank, keep
from papers.fedgcr.measuring import train
from papers.fedgcr.variants import TITLES, has_domainnet, options_for, said, variant
from papers.options import Options, script
from papers.tables import Numbers, Task, Variant, measure

IMAGES = 200
"""Test images of each domain."""


@torch.no_grad()
def mapped(task: Task) -> Numbers:
    """Train FedGCR and return a place in a plane for some test images of each domain."""
    from sklearn.manifold import TSNE

    numbers, model, federation = train(task)
    assert isinstance(model, TypePrompted)
    model.eval()
    federation = federation.to(torch.device(task.options.device))
    found, names = [], []
    for domain in federation.domains:
        place = next(i for i, client in enumerate(federation.clients) if client.domain == domain)
        data = ResidentData(federation, place)
        found.append(model.type_prompts(data.batch(data.client.test[:IMAGES], None).inputs).cpu())
        names += [domain] * len(found[-1])
    state = derive(task.seed, "t-SNE") % 2**32
    places = TSNE(random_state=state, init="pca", perplexity=min(30.0, len(names) / 4)).fit_transform(
        torch.cat(found).numpy()
    )
    return {"domain_mean": numbers["domain_mean"], "places": np.round(places, 3).tolist(), "domains": names}


def draw(maps: dict[str, Numbers], options: Options) -> None:
    """Draw one panel for each data set."""
    figure = blank(4.5 * len(maps), 4.2)
    axes: Any = figure.subplots(1, len(maps), squeeze=False)[0]
    for ax, (title, numbers) in zip(axes, maps.items(), strict=True):
        places, names = np.array(numbers["places"]), np.array(numbers["domains"])
        for domain in dict.fromkeys(numbers["domains"]):
            ax.scatter(*places[names == domain].T, s=5, label=domain, linewidths=0)
        ax.set_title(title, fontsize=10)
        ax.set_xticks([])
        ax.set_yticks([])
        ax.legend(frameon=False, fontsize=8, markerscale=2)
    keep(figure, options.out / "figure-3.png", options)


@script
def main() -> None:
    """Draw Figure 3."""
    options = options_for("Figure 3: t-SNE of GC-Net's prompts", seeds=(0,))
    other = "domainnet" if has_domainnet(options) else "pacs"
    variants = []
    for data in ("digits",) if options.quick else ("digit-five", other):
        one = variant(options, data, 10, "fedgcr")
        variants.append(Variant(name=TITLES[data], measure=mapped, settings=one.settings))
    note = "" if options.quick or other == "domainnet" else "PACS stands in for DomainNet."
    print(f"### Figure 3: t-SNE of GC-Net's prompts\n\n{said(variants, options, note)}\n")
    results = measure(variants, options)
    maps = {name: found[0] for name, found in results.items() if found and "places" in found[0]}
    if not maps:
        raise UsageError(
            "there is nothing to draw: no training was finished. See why above, and try again.", code="nothing-to-show"
        )
    draw(maps, options)


if __name__ == "__main__":
    main()
