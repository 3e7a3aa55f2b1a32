"""A node's policy: what its owner lets a server ask for. No message, app or run setting can change it.

The file is TOML, and ``fedatlas flower policy`` writes one. Without a file a node keeps the defaults: any algorithm of
fedatlas that takes nothing from the client but the model's change.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NoReturn

from fedatlas.config.config import Config
from fedatlas.config.schema import defaults
from fedatlas.errors import UsageError, unknown_name
from fedatlas.models.registry import HUB_PREFIX
from fedatlas.parts.checks import check_value, field_kinds
from fedatlas.runs.files import check_private

ANY = "*"
ALL, GROUPS = "all", "groups"
TABLES = "tables"
ADAPT = "adapt"
SHOWN = 0.25
"""The least share of an image that augmentation must leave to see."""
REACHING = (
    *("atlas.file", "*.atlas", "atlas.make.encoder=clip", "atlas.make.encoder_options.*"),
    *("model.pretrained", "model.weights", "model.backbone", f"model.name={HUB_PREFIX}*"),
)
"""Settings that make a node open one of its files, or load a model from the internet."""


class PolicyError(UsageError):
    """The node's policy does not allow a request; the server may read the message."""


@dataclass(frozen=True, kw_only=True)
class Policy:
    """What a node's owner allows."""

    algorithms: Sequence[str] = (ANY,)
    """Algorithms by name; ``*`` stands for all of fedatlas' own."""
    sharing: Sequence[str] = (ALL,)
    """``all``: one model for all clients; ``groups``: groups of clients may share models."""
    disclosures: Sequence[str] = (TABLES,)
    """What may leave beyond the model's change, by the names of ``fedatlas list --disclosures``."""
    settings: Sequence[str] = (ANY, *(f"!{pattern}" for pattern in REACHING))
    """Patterns of settings that a run may change; one that begins with ``!`` forbids. The last that fits counts."""
    apps: Sequence[str] = ("fedatlas",)
    """Whose code may arrive as an app: ``fedatlas`` is the code of ``fedatlas flower init``; or an app's hash."""
    least_examples: int = 10
    """With fewer training examples nothing leaves the node, and with fewer test examples it has no test part; no step
    is made of fewer."""
    least_of_class: int = 1
    """Classes with fewer training examples are left out of what the node sends for an atlas or a check."""
    most_bytes: int = 1 << 30
    """The most bytes of one reply."""
    test_fraction: float = 0.25
    """The share of the node's rows that it is tested on, where the data have no test part; no run's config says it."""
    split_seed: int = 0
    """The seed by which those rows are drawn."""
    folds: int = 0
    """Into how many parts all rows are cut, to be tested on one of them; 0 is no cross-validation."""
    fold: int = 0
    """The part that is the test, counted from 0."""

    @classmethod
    def of_node(cls, settings: Mapping[str, Any]) -> Policy:
        """Return the policy that a node's config names; the defaults without one."""
        return cls.load(Path(str(settings["policy"])).expanduser()) if "policy" in settings else cls()

    @classmethod
    def load(cls, path: Path | str) -> Policy:
        """Return the policy in a file; raise UsageError if the file is missing or has a fault: then nothing leaves."""
        check_private(Path(path))
        try:
            values = tomllib.loads(Path(path).read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise UsageError(
                f"there is no policy {path}. Write one with `fedatlas flower policy {path}`.",
                code="file-missing",
                path=str(path),
            ) from None
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as error:
            raise UsageError(
                f"policy {path} cannot be read: {error}.", code="file-unreadable", path=str(path)
            ) from error
        kinds = field_kinds(Policy)
        for key, value in values.items():
            if key not in kinds:
                raise unknown_name(f"key in policy {path}:", key, kinds)
            check_value(f"policy {path}: {key}", value, kinds[key])
        policy = cls(**values)
        wrong = policy.folds == 1 or not 0 <= policy.fold < max(1, policy.folds)
        if wrong or not 0 < policy.test_fraction < 1:
            raise UsageError(
                f"policy {path}: test_fraction must be in (0, 1), folds 0 or at least 2, and fold in [0, folds); got "
                f"{policy.test_fraction}, {policy.folds} and {policy.fold}.",
                code="out-of-range",
                path=str(path),
            )
        return policy

    def check_config(self, config: Config) -> None:
        """Raise PolicyError if a run's config asks for an algorithm, a sharing or a setting that is not allowed."""
        for name in recipe_names(config):
            if name not in self.algorithms and (ANY not in self.algorithms or ":" in name):
                raise _refused(f"algorithm {name!r} is not allowed here", "algorithm", name)
        if ALL not in self.sharing and not shares_in_groups(config):
            raise _refused("one model for all clients is not allowed here", "sharing", ALL)
        if GROUPS not in self.sharing and shares_in_groups(config):
            raise _refused("groups of clients that share a model are not allowed here", "sharing", GROUPS)
        for key, value in changed_settings(config.values):
            if not self._lets_set(key, value):
                raise _refused(f"setting {key} is not allowed here", "setting", key)
        self.check_step("batch_size", config.values["training"]["batch_size"])

    def check_step(self, name: str, size: int | None) -> None:
        """Raise PolicyError if a step would be made of too few examples; None is all that there are."""
        if size is not None and size < self.least_examples:
            least = self.least_examples
            raise _refused(
                f"{name} {size} is below the {least} examples of a step that this node asks for", "step", size
            )

    def check_hiding(self, share_left: float) -> None:
        """Raise PolicyError if augmentation may hide so much of images that a step shows fewer examples than it has."""
        if share_left < SHOWN and self.least_examples > 1:
            raise _refused(
                f"training.augment may leave {share_left:.0%} of an image to see, and {SHOWN:.0%} are asked for: "
                "what is hidden does not count in a step",
                "augment",
                share_left,
            )

    def check_examples(self, count: int) -> None:
        """Raise PolicyError if the client has too few training examples; how many it has is not said."""
        if count < self.least_examples:
            raise _refused(f"the client has fewer than {self.least_examples} examples", "examples", self.least_examples)

    def check_bytes(self, size: int) -> None:
        """Raise PolicyError if a reply is too large."""
        if size > self.most_bytes:
            raise _refused(f"the reply has {size:,} bytes, and {self.most_bytes:,} are allowed", "bytes", size)

    def check_disclosed(self, names: Mapping[str, str]) -> None:
        """Raise PolicyError if one of these names may not leave; the values say what it is."""
        missing = [name for name in names if not self.discloses(name)]
        if missing:
            why, listed = "; ".join(names[name] for name in missing), ", ".join(map(repr, missing))
            raise _refused(f"{why} may not leave this node (disclosure {listed})", "disclosure", *missing)

    def discloses(self, name: str) -> bool:
        """Return whether a disclosure of this name is agreed to."""
        return name in self.disclosures or ANY in self.disclosures

    def refuse_kind(self, kind: str) -> NoReturn:
        """Raise PolicyError for a type of message that has no rule here."""
        raise _refused(f"a message of type {kind!r} has no rule here", "message", kind)

    def _lets_set(self, key: str, value: Any) -> bool:
        allowed = False
        for pattern in self.settings:
            if any(fnmatchcase(text, pattern.removeprefix("!")) for text in (key, f"{key}={value}")):
                allowed = not pattern.startswith("!")
        return allowed


ALLOWING = ". To allow it, "
"""Before the words of a refusal that say what the node's owner can do."""
_LISTS = {"algorithm": "algorithms", "sharing": "sharing", "disclosure": "disclosures", "setting": "settings"}
"""The list of a policy that would allow what was refused."""


def _refused(what: str, kind: str, *got: object) -> PolicyError:
    named = " and ".join(f'"{one}"' for one in got)
    how = f"{ALLOWING}add {named} to {_LISTS[kind]} in policy.toml" if kind in _LISTS else ""
    return PolicyError(
        f"against the policy of this node: {what}{how}",
        code="against-policy",
        kind=kind,
        got=got[0] if len(got) == 1 else list(got),
    )


def recipe_names(config: Config) -> list[str]:
    """Return the algorithm that a config names, then those that it builds on."""
    chosen = config.values["algorithm"]
    own = config.values["algorithms"].get(chosen["name"], {})
    options: Any = {**own, **chosen, "name": own.get("name", chosen["name"])}
    names = []
    while options is not None:
        options = options if isinstance(options, Mapping) else {"name": options}
        names.append(str(options["name"]))
        options = options.get("base")
    return names


def shares_in_groups(config: Config) -> bool:
    """Return whether groups of clients have models of their own."""
    from fedatlas.algorithms.registry import ALGORITHMS

    facts = [ALGORITHMS.entries[name].facts for name in recipe_names(config) if name in ALGORITHMS.entries]
    return "group" in config.values["atlas"]["use"] or any("sharing" in str(own.get("changes")) for own in facts)


def changed_settings(values: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the keys of a config that are not as by default, each with its value."""
    usual = defaults()
    for section, value in values.items():
        if not isinstance(value, Mapping):
            if value != usual[section]:
                yield section, value
            continue
        for key, inner in value.items():
            if inner != usual[section].get(key):
                yield from _keys(f"{section}.{key}", inner)


def _keys(key: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping) and value:
        for name, inner in value.items():
            yield from _keys(f"{key}.{name}", inner)
    else:
        yield key, value


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What a run asks of a node beyond the defaults, for a policy that lets it."""

    disclosures: Sequence[str] = ()
    sharing: Sequence[str] = field(default=(ALL,))


def policy_text(wanted: Wanted | None = None, *, everything: bool = False) -> str:
    """Return a policy as commented TOML: the defaults, what a run wants in addition, or everything."""
    wanted, usual = wanted or Wanted(), Policy()
    chosen: dict[str, Any] = {
        "algorithms": [ANY],
        "sharing": [ALL, GROUPS] if everything else list(wanted.sharing),
        "disclosures": [ANY] if everything else [*usual.disclosures, *wanted.disclosures],
        "settings": [ANY] if everything else list(usual.settings),
        "apps": list(usual.apps),
        "least_examples": 1 if everything else usual.least_examples,
        "least_of_class": usual.least_of_class,
        "most_bytes": usual.most_bytes,
        "test_fraction": usual.test_fraction,
        "split_seed": usual.split_seed,
        "folds": usual.folds,
        "fold": usual.fold,
    }
    assert list(chosen) == [own.name for own in fields(Policy)]
    lines = _HEAD.splitlines()
    for key, value in chosen.items():
        lines += ["", *(f"# {line}" for line in _COMMENTS[key].splitlines()), f"{key} = {_toml(value)}"]
    return "\n".join(lines) + "\n"


def _toml(value: Any) -> str:
    if not isinstance(value, list):
        return f"{value:_}"
    quoted = [f'"{item}"' for item in value]
    one = f"[{', '.join(quoted)}]"
    return one if len(one) < 90 else "[\n" + "".join(f"    {item},\n" for item in quoted) + "]"


_HEAD = """\
# What this node does for a server. It refuses everything else, and writes the refusal to its audit log.
# No server, app or run setting can change this file."""
_COMMENTS = {
    "algorithms": 'The algorithms that may train here: names from `fedatlas list algorithms`; "*" is all of them.\n'
    "A recipe of somebody's own, MODULE:RECIPE, must be named here and allowed with --allow-code.",
    "sharing": '"all": one model for all clients. "groups": groups of clients may share models; the node then also\n'
    "says how well several models suit its data.",
    "disclosures": "What may leave this node beyond the change of the model, its counts and its scores: names from\n"
    '`fedatlas list --disclosures`, such as "scaffold", "check" or "map label-histogram". "tables" are the sums of a\n'
    'table\'s columns, without which a table of measurements cannot train. "adapt" lets this node join a finished\n'
    "run: it tunes the model to its data, and says how well that went.",
    "settings": "The settings that a run may change: patterns of KEY or KEY=VALUE. The last that fits counts;\n"
    "! forbids what it fits.\n"
    "Forbidden by default: whatever makes this node open one of its files, or load a model from the internet.\n"
    'Add "!data.label" if your table has columns that nobody may choose as the label.',
    "apps": 'Whose code may arrive as an app. "fedatlas": exactly the code that `fedatlas flower init` writes.\n'
    "The sha256 of an app's file allows that app, whatever is in it.",
    "least_examples": "With fewer training examples than this, nothing leaves the node. With fewer test examples it\n"
    "has no test part: it trains, and says no scores. No step of a training is made of fewer: a run with smaller\n"
    "batches is refused, and a smaller last batch is left out.",
    "least_of_class": "Classes of which the node has fewer training examples are left out of its vector and means:\n"
    "the mean of a single example is that example's embedding. 1 leaves nothing out; 5 is a good choice where vectors\n"
    "may leave.",
    "most_bytes": "The most bytes of one reply.",
    "test_fraction": "The share of the rows that are tested on; data with a test part keep theirs. No server can\n"
    "change it. The rows are drawn once and kept, in split.json in the client's memory.",
    "split_seed": "The seed of that draw.",
    "folds": "Instead, for a cross-validation: cut all rows into so many parts, and test on one. 0: no.",
    "fold": "The part to test on, counted from 0.",
}
