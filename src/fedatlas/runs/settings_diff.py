"""In what the settings of two runs differ, told in few words."""

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


def told(before: Mapping[str, Any], now: Mapping[str, Any], paths: Sequence[tuple[str, ...]]) -> list[str]:
    """Return what differs in a few words each; clients and examples follow from the rest, and are told if alone."""
    lines = {".".join(map(str, path)): [_at(tree, path) for tree in (before, now)] for path in paths}
    seeds = [{*tree.get("seeds", {}).values()} for tree in (before, now)]
    if seeds[0] != seeds[1] and all(len(seed) == 1 for seed in seeds):
        lines = {"seed": [*seeds[0], *seeds[1]]} | {k: v for k, v in lines.items() if not k.startswith("seeds.")}
    said = [key for key in lines if key not in ("federation.clients", "federation.fingerprint")]
    words = ["{}: {} then, {} now".format(key, *_cut(*map(repr, lines[key]))) for key in said]
    return words or ["other examples, or other clients that hold them"]


def _cut(*texts: str) -> list[str]:
    """Return texts as they are if they are short, else a piece of each about where they begin to differ."""
    same = len(list(takewhile(lambda letters: len({*letters}) == 1, zip(*texts, strict=False))))
    start = max(0, same - 20) if max(map(len, texts)) > 60 else 0
    return ["..." * (start > 0) + text[start : start + 60] + "..." * (len(text) > start + 60) for text in texts]


def _at(tree: Any, path: tuple[str, ...]) -> Any:
    for key in path:
        tree = tree.get(key) if isinstance(tree, Mapping) else None
    return tree
