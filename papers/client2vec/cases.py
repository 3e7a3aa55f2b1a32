"""What the tables share: a case of the paper by its title, and tables of bases by cases."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fedatlas.errors import UsageError
from papers.client2vec.settings import BASES, QUICK, STRATEGIES
from papers.client2vec.variants import measure_all, training, with_index
from papers.options import Options
from papers.tables import Cell, Numbers, Table, Variant, write_table

ORIGINAL = "original"


def case(options: Options, title: str, *, data: str = "cifar10", base: str = "FedAvg", **others: Any) -> Variant:
    """Return a case by the title that the paper's tables give it: ``original`` or such as ``GLOBAL i+ii``.

    ``others`` are ``with_index``'s; what belongs to the index is left out for the original.
    """
    label = others.pop("label", title)
    name = f"{data}, {base}: {label}"
    if title == ORIGINAL:
        own = {key: value for key, value in others.items() if key in ("changes", "unscaled")}
        return training(name, options, data=data, base=base, **own)
    strategy, cases = title.split(" ")
    return with_index(name, options, strategy=STRATEGIES[strategy], cases=cases, data=data, base=base, **others)


def show(
    title: str,
    setting: str,
    columns: Sequence[str],
    rows: Mapping[str, Sequence[tuple[Variant | None, float | None]]],
    options: Options,
) -> dict[str, list[Numbers]]:
    """Train the variants of a table's cells and print it: a row is a variant and the paper's number for each column."""
    variants = [variant for cells in rows.values() for variant, _ in cells if variant is not None]
    results = measure_all(variants, options)
    one_base = "bases" in options.extra
    table = Table(
        title=title,
        setting=options.pick(setting, f"{QUICK}{' Only the first base algorithm is shown.' if one_base else ''}"),
        columns=tuple(columns),
        rows={
            row: [Cell(None if variant is None else variant.name, paper=number) for variant, number in cells]
            for row, cells in rows.items()
        },
    )
    write_table(table, results, options)
    return results


def swept(
    base: str,
    published: tuple[float, Sequence[float], Sequence[float]],
    values: Sequence[float],
    made: Callable[[str, float], Variant],
    options: Options,
) -> list[tuple[Variant, float]]:
    """Return a row of Tables 5 to 7 with the paper's numbers: the original, then each value of each strategy."""
    original, *rows = published
    found = [(case(options, ORIGINAL, base=base), original)]
    for title, numbers in zip(STRATEGIES, rows, strict=True):
        found += [(made(title, value), number) for value, number in zip(values, numbers, strict=True)]
    return found


def chosen(rows: Mapping[str, Any], options: Options) -> dict[str, Any]:
    """Return the rows of the base algorithms that ``--bases`` names, with ``--quick`` only the first."""
    wanted = options.listed("bases", BASES)
    kept = {base: row for base, row in rows.items() if base in wanted}
    if not kept:
        raise UsageError(
            f"--bases {options.extra['bases']}: the table has {', '.join(rows)}. Name some of these.",
            code="nothing-to-show",
        )
    return dict(list(kept.items())[:1]) if options.quick else kept
