"""All that is shown of FedPCE, in one go: Tables 1 and 2, Figures 1, 3 and 4, and the page of results.

    python -m papers.fedpce.evidence --device cuda --jobs 6 --minutes 9 --sets CIFAR-10 --out runs/fedpce
    python -m papers.fedpce.evidence --stem cifar-pool ...     # the network with a max-pool behind its first layer

The same command goes on where the last one stopped. Each method is one process; ``evidence.md`` has
the tables of all that was measured so far, and figures go beside it. ``docs/evidence/fedpce.md`` is made from these.
"""

import sys
from collections.abc import Mapping

from fedatlas.errors import DataError
from papers.fedpce import figure_1, figure_3, figure_4
from papers.fedpce.setting import SETS, all_methods, options_of, shown
from papers.fedpce.table_1 import table_1
from papers.fedpce.table_2 import table_2
from papers.options import Options, script
from papers.tables import Numbers, measure, render, write_table


def costs(title: str, results: Mapping[str, list[Numbers]]) -> str:
    """Return what each method trained, tuned and took."""
    lines = [f"### What it took, {title}", ""]
    columns = ("parameters", "tuned by a new client", "aggregations", "images trained", "training, s")
    lines += [f"| | {' | '.join(columns)} | tuning a client, s | groups |", "|---" * 8 + "|"]
    for name, numbers in results.items():
        if not numbers or "parameters" not in numbers[0]:
            continue
        own = numbers[0]
        groups = f"{own['groups']:.1%}" if "groups" in own else "–"
        tuned = (f"{own['tuned']:,}", f"{own['tuning_seconds']:.1f}") if "tuned" in own else ("–", "–")
        spent = (str(own["rounds"]), f"{own['images']:,}", f"{own['seconds']:.0f}")
        cells = (f"{own['parameters']:,}", tuned[0], *spent, tuned[1], groups)
        lines.append(f"| {name.removeprefix(title).strip()} | {' | '.join(cells)} |")
    lines += ["", "Groups: k-means of what clients keep, as many groups as kinds; the share with their group's kind."]
    return "\n".join(lines) + "\n"


def report(title: str, results: Mapping[str, list[Numbers]], options: Options) -> str:
    """Return the page's part about one data set, and draw its figures."""
    parts = []
    for table in (table_1(title, options), table_2(title, options)):
        write_table(table, results, options)
        parts.append(render(table, results))
    if title == "CIFAR-10":
        parts.append(figure_4.report(results, options))
    parts.append(costs(title, results))
    (options.out / f"costs-{shown(title, options).lower().replace(' ', '-')}.md").write_text(parts[-1])
    for method, draw in (("FedBN", figure_1.draw), ("FedPCE", lambda given: figure_3.draw(title, given))):
        if results[f"{title} {method}"] and (method == "FedPCE" or title == "CIFAR-10"):
            try:
                draw(options)
            except DataError as error:  # an atlas that is not there yet, or did not travel with the results
                print(f"no figure of {title} {method}: {error}")
    return "\n".join(part for part in parts if part)


@script
def main() -> None:
    """Measure what is missing on the sets that are asked for, and write the page."""
    options = options_of(__doc__ or "", sets="CIFAR-10,Digits")
    titles = options.listed("sets", SETS)
    variants = [one for title in titles for one in all_methods(title, options)]
    results = measure(variants, options)
    parts = []
    for title in titles:
        own = {name: numbers for name, numbers in results.items() if name.startswith(f"{title} ")}
        machines = {numbers[0]["machine"] for numbers in own.values() if numbers and "machine" in numbers[0]}
        command = f"python -m papers.fedpce.evidence {' '.join(sys.argv[1:])}"
        words = f"`{command}`, on {', '.join(sorted(machines)) or 'nothing yet'}."
        parts.append(f"## {shown(title, options)}\n\n{words}\n\n{report(title, own, options)}")
    (options.out / "evidence.md").write_text("\n".join(parts))
    print(f"page: {options.out / 'evidence.md'}")


if __name__ == "__main__":
    main()
