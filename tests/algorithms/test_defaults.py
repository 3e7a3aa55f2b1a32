"""What a recipe does when nothing is set: what its page says, and what its parts do by themselves."""

import dataclasses
import inspect
from itertools import chain
from typing import Any

import pytest

import fedatlas
from atlases import by_hand, turned_atlas
from fedatlas.algorithms import ALGORITHMS
from fedatlas.algorithms.fedgcr import PRESETS
from fedatlas.algorithms.fedpce import Grouped
from fedatlas.models import DEFAULT_WEIGHTS, prompted_vit
from fedatlas.parts import Adam
from pages import as_told, read, told

NOT_NAMED = {
    ("client2vec", "base"): "`fedavg`",
    ("clustered", "base"): "`fedavg`",
    ("cfl", "base"): "`fedavg`",
    ("grouped", "base"): "`fedavg`",
    ("grouped", "members"): "none",
    ("ifca", "base"): "`fedavg`",
    ("feddisco", "base"): "`fedavg`",
    ("fedgr", "base"): "`fedavg`",
    ("capped", "base"): "`fedavg`",
    ("clipped", "base"): "`fedavg`",
    ("clipped", "norm"): "none",
    ("dp_fedavg", "base"): "`fedavg`",
    ("krum", "base"): "`fedavg`",
    ("median", "base"): "`fedavg`",
    ("multi_krum", "base"): "`fedavg`",
    ("trimmed_mean", "base"): "`fedavg`",
    ("client2vec", "tau"): "by the atlas",
    ("client2vec", "lambda_o"): "by the atlas",
    ("client2vec", "lambda_d"): "by the atlas",
    ("client2vec", "half"): "all",
    ("harmofl", "channels"): "none",
    ("qffl", "eta"): "the clients' learning rate",
}
"""What pages call a default that is None in the code; an atlas has no word at all."""


@pytest.mark.parametrize("name", sorted(set(ALGORITHMS) - {"fedgcr"}))
def test_a_page_tells_the_defaults_of_its_recipe(name: str) -> None:
    options = inspect.signature(getattr(fedatlas.algorithms, name)).parameters.values()
    defaults = {
        option.name: NOT_NAMED.get((name, option.name), "") if option.default is None else as_told(option.default)
        for option in options
    }
    assert {title: read(text) for title, text in told(f"algorithms/{name}.md", "Settings").items()} == defaults


def test_the_page_of_fedgcr_tells_the_numbers_of_the_paper_s_preset() -> None:
    page, preset = told("algorithms/fedgcr.md", "Settings"), PRESETS["paper"]
    numbers = {
        **{title: getattr(preset.term, title) for title in ("lambda1", "lambda2", "tau")},
        **{title: getattr(preset.weighting, title) for title in ("q", "delta", "gamma")},
    }
    assert {title: float(page[title]) for title in numbers} == numbers
    assert page["method"] == f"`{preset.groups.method}`"
    assert float(page["num_groups"]) == preset.groups.num_groups
    assert fedatlas.algorithms.fedgcr() == fedatlas.algorithms.fedgcr(num_groups=preset.groups.num_groups)


def test_the_page_of_fedgcr_tells_the_defaults_of_its_model() -> None:
    page, options = told("algorithms/fedgcr.md", "Settings"), inspect.signature(prompted_vit).parameters
    for title in ("num_prompts", "prompt_rate", "dropout", "patch", "width", "depth", "heads"):
        assert float(page[title]) == options[title].default
    assert page["weights"] == f"`{DEFAULT_WEIGHTS}`"


def test_fedgcr_as_published_is_what_the_code_of_its_authors_does() -> None:
    preset = PRESETS["as_published_code"]
    term, weighting = preset.term, preset.weighting
    # lambda1 = 0.1 (0.5 + 0.5 r0 / R), lambda2 = 0.05, the alignment not divided by tau
    assert (term.lambda1, term.ramp, term.lambda2, term.tau, term.tau_alignment) == (0.1, True, 0.05, 0.5, 1.0)
    # beta_r = 0.5 (1 - 0.9^r), groups' losses by their members' sizes
    assert (weighting.delta, weighting.gamma, weighting.delay, weighting.by_examples) == (0.5, 0.9, 0, True)
    assert preset.model.mix_in_batch
    assert preset.optimizer.keep_state
    assert not PRESETS["paper"].optimizer.keep_state


def test_fedgcr_trains_with_adamw() -> None:
    assert PRESETS["paper"].optimizer == Adam(lr=1e-3, weight_decay=1e-2, decoupled=True)
    assert not PRESETS["paper"].model.mix_in_batch


def own_parts(algorithm: fedatlas.Algorithm) -> list[Any]:
    """Return the parts that were written for an algorithm; FedPCE's rates are its recipe's and no part's."""
    several = ("objective", "weighting", "combination", "server", "extensions")
    chains = (getattr(algorithm, slot) for slot in several)
    parts: list[Any] = [algorithm.sampler, algorithm.sharing, algorithm.split, algorithm.optimizer, *chain(*chains)]
    return [
        part
        for part in parts
        if type(part).__module__.startswith("fedatlas.algorithms.") and not isinstance(part, Grouped)
    ]


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_a_part_by_itself_has_the_settings_that_its_recipe_gives_it(name: str) -> None:
    needed = {"client2vec": {"atlas": by_hand(), "train": True}, "grouped": {"atlas": turned_atlas()}}
    options = needed.get(name, {})
    for part in own_parts(getattr(fedatlas.algorithms, name)(**options)):
        for own in dataclasses.fields(part):
            if own.default is not dataclasses.MISSING and own.name != "reason":
                assert getattr(part, own.name) == own.default, f"{type(part).__name__}.{own.name}"
