"""What the figures share: heat maps of atlases with their mean cosines, and bars of accuracies."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from fedatlas.atlas import Atlas
from fedatlas.report import similarity_picture
from papers.client2vec.indexing import Spec, atlas_file, make_atlases
from papers.client2vec.settings import QUICK
from papers.drawing import blank, keep
from papers.options import Options
from papers.tables import Cell, Numbers, Table, write_table

COLUMNS = {"ARI": "feature_ari", "same domain": "feature_same", "other domain": "feature_other"}


def draw_atlases(
    title: str,
    claim: str,
    specs: Mapping[str, Spec],
    options: Options,
    halves: Sequence[str | None] = ("feature",),
) -> dict[str, Atlas]:
    """Make atlases, draw each as a heat map, print the mean cosines of the feature half; return the atlases."""
    results = make_atlases(specs, options)
    found = {}
    for name, spec in specs.items():
        if not results[name]:
            continue
        atlas = found[name] = Atlas.load(atlas_file(spec, options))
        for half in halves:
            picture = similarity_picture(atlas, half, title=f"{name}, {half or 'both halves'}")
            keep(picture, options.out / f"{slug(f'{title} {name} {half or str()}')}.png", options)
    first = next(iter(specs.values()))
    setting = f"{first['setting']} in place of DomainNet, encoder {first['encoder']}, {first.get('epochs')} epochs."
    table = Table(
        title=f"{title}: k-means of beta^f, and its mean cosines",
        setting=f"{QUICK if options.quick else setting} {claim}",
        columns=tuple(COLUMNS),
        rows={name: [Cell(name, key=key) for key in COLUMNS.values()] for name in specs},
        scale=1.0,
        digits=2,
    )
    write_table(table, results, options)
    return found


def draw_bars(
    title: str, groups: Mapping[str, Sequence[str]], results: Mapping[str, list[Numbers]], options: Options
) -> None:
    """Draw the best accuracies of groups of variants as bars, means over seeds, and save the picture."""
    figure = blank(1.6 + 1.1 * sum(map(len, groups.values())), 4)
    axes = figure.add_subplot()
    place, ticks, labels = 0.0, [], []
    for group, names in groups.items():
        for name in names:
            best = [numbers["best"] for numbers in results.get(name, []) if "best" in numbers]
            if best:
                axes.bar(
                    place, 100 * sum(best) / len(best), width=0.8, color="#4477aa" if name == names[0] else "#cc6677"
                )
            ticks.append(place)
            labels.append(f"{group}\n{name.rpartition(': ')[2]}")
            place += 1
        place += 0.6
    axes.set_xticks(ticks, labels, rotation=60, ha="right", rotation_mode="anchor", fontsize=7)
    axes.set_ylabel("best accuracy, percent")
    axes.set_title(title)
    keep(figure, options.out / f"{slug(title.split(':')[0])}.png", options)


def slug(words: str) -> str:
    """Return words as a file's name."""
    return re.sub(r"[^a-z0-9]+", "-", words.lower()).strip("-")
