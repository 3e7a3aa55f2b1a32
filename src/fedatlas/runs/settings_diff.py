"""The differences between the settings of two runs, in few words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import Any


def differences(one: Any, other: Any, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """Return the paths at which two trees of settings differ."""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        keys = dict.fromkeys([*one, *other])
        return [found for key in keys for found in differences(one.get(key), other.get(key), (*path, key))]
    return [] if one == other else [path]


def describe(before: Mapping[str, Any], now: Mapping[str, Any], paths: Sequence[tuple[str, ...]]) -> list[str]:
    """Return each difference in a few words.

    Clients and examples follow from the other settings, so they are named only if nothing else differs.
    """
    lines = {".".join(map(str, path)): [_at(tree, path) for tree in (before, now)] for path in paths}
    seeds = [{*tree.get("seeds", {}).values()} for tree in (before, now)]
    if seeds[0] != seeds[1] and all(len(seed) == 1 for seed in seeds):
        lines = {"seed": [*seeds[0], *seeds[1]]} | {k: v for k, v in lines.items() if not k.startswith("seeds.")}
    shown = [key for key in lines if key not in ("federation.clients", "federation.fingerprint")]
    words = ["{}: {} then, {} now".format(key, *_cut(*map(repr, lines[key]))) for key in shown]
    return words or ["other examples, or other clients that hold them"]


def _cut(*texts: str) -> list[str]:
    """Return short texts as they are, and of long texts the part where they begin to differ."""
    same = len(list(takewhile(lambda letters: len({*letters}) == 1, zip(*texts, strict=False))))
    start = max(0, same - 20) if max(map(len, texts)) > 60 else 0
    return ["..." * (start > 0) + text[start : start + 60] + "..." * (len(text) > start + 60) for text in texts]


def _at(tree: Any, path: tuple[str, ...]) -> Any:
    for key in path:
        tree = tree.get(key) if isinstance(tree, Mapping) else None
    return tree
