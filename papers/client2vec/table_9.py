"""Table 9: three networks over a federation of domains, all uses (the main text's Table 4 shows the same)."""

from __future__ import annotations

from papers.client2vec.cases import case, chosen, show
from papers.client2vec.published import TABLE_9
from papers.client2vec.settings import MODELS, domains_of, pretrained, read
from papers.options import script

COLUMNS = ("original", "FEDERATED i+ii+iii", "GLOBAL i+ii+iii")


@script
def main(number: int = 9) -> None:
    """Print one table for each network."""
    options = read(f"Table {number}: three networks", bases="", models="mobilenet_v2,resnet18,cct")
    domains = domains_of(options)
    for model in options.listed("models", TABLE_9):
        changes = {} if options.quick else {"changes": {"model": pretrained(MODELS[model], options)}}
        rows = {
            base: [
                (case(options, title, data=domains.data, base=base, **changes), theirs)
                for title, theirs in zip(COLUMNS, numbers, strict=True)
            ]
            for base, numbers in chosen(TABLE_9[model], options).items()
        }
        setting = f"{domains.setting} Network {model}; the paper's MobileNetV2 and ResNet-18 were pretrained."
        show(f"Table {number}, {model}: {domains.words}, best round", setting, COLUMNS, rows, options)


if __name__ == "__main__":
    main()
