"""What the frozen backbone lets any method reach: a linear probe on its features, for each domain by itself.

    python -m papers.fedgcr.ceiling --data-folder PACKED --out runs/fedgcr
    python -m papers.fedgcr.ceiling --data-folder PACKED --out runs/fedgcr --weights runs/vit/mixed-vit.safetensors

For each domain the class tokens of some training images, without prompts, are the inputs of a logistic regression,
which is tested on the domain's test images, at most 2,000. Seeds draw the training images. A processor is enough.
"""

from collections.abc import Sequence

from papers.fedgcr.probing import measured
from papers.fedgcr.variants import TINY, TITLES, backbone
from papers.options import Options, one_of, read_options, script
from papers.tables import Cell, Table, Variant, measure, write_table

COUNTS = (300, 1000)
"""Training images of a domain."""


def ceiling_variant(options: Options, data: str) -> Variant:
    """Return the probe of one data set; with ``--quick`` of the embedded digits, by a tiny network."""
    settings = {
        "data": options.pick(data, "digits"),
        "model": dict(TINY) if options.quick else backbone(options),
        "counts": list(options.pick(COUNTS, (60, 120))),
    }
    return Variant(name=f"{data}, linear probe", measure=measured, settings=settings)


def ceiling_table(one: Variant, options: Options, domains: Sequence[str]) -> Table:
    """Return the table of one data set."""
    rows = {
        f"{count} training images": [Cell(one.name, key=f"{domain} {count}") for domain in (*domains, "mean")]
        for count in one.settings["counts"]
    }
    setting = "A linear classifier on the frozen backbone's class token, for each domain by itself."
    title = f"Ceiling, {TITLES[one.settings['data']]}"
    return Table(title=title, setting=setting, columns=(*domains, "mean"), rows=rows)


@script
def main() -> None:
    """Probe the backbone on each data set."""
    options = read_options(
        "A linear probe of the backbone, by domain", rounds=1, seeds=(0, 1, 2), sets="digit-five,pacs", weights=""
    )
    for name in ("digits",) if options.quick else options.extra["sets"].split(","):
        one = ceiling_variant(options, one_of("sets", name, TITLES))
        results = measure([one], options)
        domains = [key.rpartition(" ")[0] for key in results[one.name][0]] if results[one.name] else []
        shown = [domain for domain in dict.fromkeys(domains) if domain != "mean"]
        write_table(ceiling_table(one, options, shown), results, options)


if __name__ == "__main__":
    main()
