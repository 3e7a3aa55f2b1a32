from dataclasses import asdict, replace
from typing import Any

import pytest
import torch

from fedatlas.atlas import label_histogram
from fedatlas.config import Config
from fedatlas.data import (
    ColorShift,
    ColourShifted,
    ConditionalShift,
    Dataset,
    Dirichlet,
    Federation,
    Iid,
    PermutedLabels,
    Rotate,
    Rotated,
    federate,
)
from fedatlas.data.partitions.shifts import LOOKS, Recolour, Relabel, Turn
from fedatlas.errors import DataError, UsageError
from fedatlas.seeds import generator, numpy_generator
from raising import raises

SHIFTS = [Rotated, ColourShifted, PermutedLabels, ConditionalShift]
MARKED = ((0, 0), (1, 0), (1, 1), (0, 1))
"""Where the upper left corner is after so many quarter turns."""


def squares(count: int = 240, num_classes: int = 6, **extra: Any) -> Dataset:
    """Images of 2 x 2 pixels: two channels show the image's number, in the third the upper left corner is marked."""
    inputs = torch.zeros(count, 3, 2, 2, dtype=torch.uint8)
    inputs[:, :2] = torch.arange(count, dtype=torch.uint8)[:, None, None, None]
    inputs[:, 2, 0, 0] = 9
    labels = torch.arange(count) % num_classes
    return Dataset(name="squares", inputs=inputs, labels=labels, classes=tuple("abcdefghij"[:num_classes]), **extra)


def parts(federation: Federation) -> list[torch.Tensor]:
    """Return each client's examples."""
    return [torch.cat([client.train, client.test]) for client in federation]


def image_numbers(federation: Federation, own: torch.Tensor) -> torch.Tensor:
    """Return which images a client's examples were made of; turned or relabelled images still show it."""
    return federation.data.inputs[own, 0, 0, 0].long()


def quarter_turns(federation: Federation, own: torch.Tensor) -> list[int]:
    """Return by how many quarters each of a client's images is turned."""
    marked = federation.data.inputs[own, 2] == 9
    return [next(i for i, place in enumerate(MARKED) if one[place]) for one in marked]


def test_right_angles_move_whole_pixels() -> None:
    """Counter-clockwise, the right column becomes the top row."""
    image = torch.tensor([[[[1, 2], [3, 4]]]], dtype=torch.uint8)
    found = {degrees: Turn(degrees=degrees)(image, torch.zeros(1))[0][0, 0].tolist() for degrees in (0, 90, 180, -90)}
    assert found == {0: [[1, 2], [3, 4]], 90: [[2, 4], [1, 3]], 180: [[4, 3], [2, 1]], -90: [[3, 1], [4, 2]]}


@pytest.mark.parametrize("degrees", [90.0, 270.0, 45.0, 30.0])
def test_turns_are_those_of_the_transform_up_to_rounding(degrees: float) -> None:
    images = torch.randint(256, (5, 3, 6, 6), dtype=torch.uint8, generator=generator(0, "images"))
    turned = Turn(degrees=degrees)(images, torch.zeros(5))[0]
    wanted = 255 * Rotate(degrees=degrees)(images / 255, torch.Generator())
    assert turned.dtype == torch.uint8
    assert (turned - wanted).abs().max() <= 0.51


def test_oblong_images_keep_their_shape() -> None:
    image = torch.tensor([[[[1, 2, 3], [4, 5, 6]]]], dtype=torch.uint8)
    assert Turn(degrees=180)(image, torch.zeros(1))[0].tolist() == [[[[6, 5, 4], [3, 2, 1]]]]
    assert Turn(degrees=90)(image, torch.zeros(1))[0].shape == image.shape


def test_of_some_classes_the_images_are_turned_and_the_others_stay() -> None:
    images = torch.tensor([[[[1, 2], [3, 4]]]], dtype=torch.uint8).repeat(3, 1, 1, 1)
    turned, labels = Turn(degrees=180, classes=(0, 2))(images, torch.tensor([2, 1, 0]))
    assert turned.flatten(1).tolist() == [[4, 3, 2, 1], [1, 2, 3, 4], [4, 3, 2, 1]]
    assert labels.tolist() == [2, 1, 0]
    assert images.flatten(1).tolist() == [[1, 2, 3, 4]] * 3


def test_labels_are_renamed_by_a_table() -> None:
    inputs = torch.arange(5)
    same, labels = Relabel(labels=(2, 0, 1, 3))(inputs, torch.tensor([0, 1, 2, 3, 0]))
    assert labels.tolist() == [2, 0, 1, 3, 2]
    assert same is inputs


def test_looks_are_exact_bytes() -> None:
    pixel = torch.tensor([10, 21, 255], dtype=torch.uint8).view(1, 3, 1, 1)
    found = {look: Recolour(look=look)(pixel, torch.zeros(1))[0].flatten().tolist() for look in LOOKS}
    assert found == {
        "plain": [10, 21, 255],
        "hue 120": [255, 10, 21],
        "hue 240": [21, 255, 10],
        "inverted": [245, 234, 0],
        "dark": [5, 10, 127],
        "pale": [133, 138, 255],
    }


@pytest.mark.parametrize(("look", "hue"), [("hue 120", 1 / 3), ("hue 240", -1 / 3)])
def test_swapped_channels_are_a_turned_hue(look: str, hue: float) -> None:
    images = torch.randint(256, (5, 3, 4, 4), dtype=torch.uint8, generator=generator(0, "images"))
    wanted = 255 * ColorShift(hue=hue)(images / 255, torch.Generator())
    assert (LOOKS[look](images) - wanted).abs().max() < 0.01


def test_rotated_groups_take_turns_and_hold_their_images_turned() -> None:
    federation = federate(squares(), Rotated(num_clients=10, examples_per_client=20), test_fraction=0.3)
    assert federation.types == ("rotated 0", "rotated 90", "rotated 180", "rotated 270")
    assert [client.type for client in federation] == [federation.types[i % 4] for i in range(10)]
    assert [client.name for client in federation][:2] == ["client-00", "client-01"]
    assert [(len(client.train), len(client.test)) for client in federation] == [(14, 6)] * 10
    for i, own in enumerate(parts(federation)):
        assert quarter_turns(federation, own) == [i % 4] * 20
        assert torch.equal(federation.data.labels[own], image_numbers(federation, own) % 6)
    assert torch.cat(parts(federation)).sort().values.tolist() == list(range(200)) == list(range(len(federation.data)))


def test_angles_can_be_given_and_are_equally_spaced_otherwise() -> None:
    given = Rotated(num_clients=4, num_groups=2, degrees=[0, 45])  # type: ignore[arg-type]
    assert given.degrees == (0, 45)
    assert federate(squares(), given).types == ("rotated 0", "rotated 45")
    three = federate(squares(), Rotated(num_clients=4, num_groups=3))
    assert three.types == ("rotated 0", "rotated 120", "rotated 240")


@pytest.mark.parametrize("shift", SHIFTS)
def test_the_seed_gives_the_same_bits_and_deals_as_without_a_shift(shift: Any) -> None:
    data = squares()
    one, same, other = (federate(data, shift(num_clients=8), seed=seed) for seed in (3, 3, 4))
    assert torch.equal(one.data.inputs, same.data.inputs)
    assert torch.equal(one.data.labels, same.data.labels)
    assert [c.type for c in one] == [c.type for c in same]
    assert all(torch.equal(a, b) for a, b in zip(parts(one), parts(same), strict=True))
    assert not torch.equal(one.data.inputs, other.data.inputs)
    plain = federate(data, Iid(num_clients=8), seed=3)
    single = federate(data, shift(num_clients=8, num_groups=1), seed=3)
    for a, b in zip(plain, single, strict=True):
        assert torch.equal(plain.data.inputs[a.train], single.data.inputs[b.train])
        assert torch.equal(plain.data.labels[a.test], single.data.labels[b.test])


def test_data_that_are_partitioned_stay_as_they_were() -> None:
    data = squares()
    inputs, labels = data.inputs.clone(), data.labels.clone()
    for shift in SHIFTS:
        federate(data, shift(num_clients=8))  # type: ignore[operator]
    assert torch.equal(data.inputs, inputs)
    assert torch.equal(data.labels, labels)


def test_with_alpha_the_classes_are_those_of_dirichlet_before_the_change() -> None:
    data = squares()
    rule = Dirichlet(num_clients=4, alpha=0.3, min_samples=5)
    plain = rule.assign(data, numpy_generator(0, "partition"))
    federation = federate(data, Rotated(num_clients=4, alpha=0.3, min_samples=5))
    for share, own in zip(plain, parts(federation), strict=True):
        assert sorted(image_numbers(federation, own).tolist()) == sorted(share.indices.tolist())
    few = federate(data, Rotated(num_clients=4, alpha=0.3, min_samples=5, examples_per_client=30))
    assert [len(own) for own in parts(few)] == [min(30, len(share.indices)) for share in plain]
    for share, own in zip(plain, parts(few), strict=True):
        assert set(image_numbers(few, own).tolist()) <= set(share.indices.tolist())


def test_held_out_clients_are_drawn_from_all_types_or_named_by_one() -> None:
    federation = federate(squares(), Rotated(num_clients=12), held_out=4)
    assert sorted(c.type or "" for c in federation if c.held_out) == sorted(federation.types)
    federation = federate(squares(), Rotated(num_clients=12), held_out=["rotated 90", "client-00"])
    assert [c.name for c in federation if c.held_out] == ["client-00", "client-01", "client-05", "client-09"]
    with raises(UsageError, "held-out", most=8):
        federate(squares(), Rotated(num_clients=12), held_out=9)


@pytest.mark.parametrize("test", ["all", "client"])
def test_a_shared_test_part_is_there_once_for_each_group_in_its_own_form(test: str) -> None:
    """24 of 240 examples are for test; with four groups there are 216 + 4 * 24 examples."""
    data = squares(is_test=torch.arange(240) % 10 == 0)
    federation = federate(data, PermutedLabels(num_clients=8, classes="all"), test=test)
    assert len(federation.data) == {"all": 216 + 4 * 24, "client": 240}[test]
    for client, own in zip(federation, parts(federation), strict=True):
        numbers = image_numbers(federation, own)
        renamed = torch.stack([numbers % 6, federation.data.labels[own]], 1).unique(dim=0)
        assert renamed[:, 0].tolist() == list(range(6))
        assert (renamed[:, 0] == renamed[:, 1]).all() == (client.type == "labels as given")
        if test == "all":
            assert image_numbers(federation, client.test).tolist() == list(range(0, 240, 10))
            assert federation.data.is_test is not None
            assert federation.data.is_test[own].tolist() == [False] * len(client.train) + [True] * 24


@pytest.mark.parametrize(("classes", "count"), [(2, 2), (3, 3), ("all", 6)])
def test_of_the_chosen_classes_none_keeps_its_label_and_no_two_groups_agree(classes: Any, count: int) -> None:
    groups = PermutedLabels(num_clients=5, num_groups=5, classes=classes).groups(squares(), numpy_generator(1))
    assert list(groups) == ["labels as given", *(f"labels permuted {i}" for i in range(1, 5))]
    tables = [shift.labels for shift in groups.values() if isinstance(shift, Relabel)]
    assert tables[0] == tuple(range(6))
    assert len(set(tables)) == 5
    for table in tables[1:]:
        assert sorted(table) == list(range(6))
        assert sum(label != i for i, label in enumerate(table)) == count


def test_label_counts_are_of_the_new_labels() -> None:
    data = replace(squares(num_classes=3), labels=torch.tensor([1] * 40 + [2] * 200))
    federation = federate(data, PermutedLabels(num_clients=2, num_groups=2, classes="all"))
    own = parts(federation)[1]
    old, new = data.labels[image_numbers(federation, own)].bincount(minlength=3), federation.data.labels[own]
    counted = federation.label_counts(1, "train") + federation.label_counts(1, "test")
    assert counted.tolist() == new.bincount(minlength=3).tolist() != old.tolist()
    assert sorted(counted.tolist()) == sorted(old.tolist())


def test_in_a_group_only_its_classes_look_different() -> None:
    federation = federate(squares(num_classes=10), ConditionalShift(num_clients=8))
    first, *others = federation.types
    assert first == "plain"
    chosen = [set(name.split(" rotated ")[0].split("/")) for name in others]
    assert [name.split(" rotated ")[1] for name in others] == ["90", "180", "270"]
    assert [len(own) for own in chosen] == [3, 3, 3]
    assert len(set.union(*chosen)) == 9
    for i, own in enumerate(parts(federation)):
        labels = [federation.data.classes[label] for label in federation.data.labels[own].tolist()]
        turned = [i % 4 if i % 4 and label in chosen[i % 4 - 1] else 0 for label in labels]
        assert quarter_turns(federation, own) == turned
    every = federate(squares(), ConditionalShift(num_clients=2, num_groups=2, classes="all"))
    assert every.types == ("plain", "a/b/c/... rotated 180")


def test_grey_images_have_no_hue() -> None:
    grey = replace(squares(), inputs=squares().inputs[:, :1])
    assert federate(grey, ColourShifted(num_clients=4)).types == ("plain", "inverted", "dark", "pale")
    assert federate(squares(), ColourShifted(num_clients=4)).types == ("plain", "hue 120", "hue 240", "inverted")
    with raises(UsageError, "out-of-range", setting="num_groups", most=4):
        federate(grey, ColourShifted(num_clients=5, num_groups=5))


def test_labels_of_any_data_can_be_permuted_and_only_images_turned() -> None:
    features = Dataset(name="rows", inputs=torch.rand(60, 3), labels=torch.arange(60) % 3, classes=("a", "b", "c"))
    federation = federate(features, PermutedLabels(num_clients=4, num_groups=2))
    assert federation.data.kind == "features"
    assert not torch.equal(federation.data.labels, federation.data.labels.sort().values)
    for shift in (Rotated, ColourShifted, ConditionalShift):
        with raises(UsageError, "kind-mismatch", got="features"):
            federate(features, shift(num_clients=4))


@pytest.mark.parametrize(
    ("shift", "settings", "code", "fields"),
    [
        (Rotated, {"num_groups": 9}, "out-of-range", {"setting": "num_groups", "got": 9, "most": 8}),
        (Rotated, {"num_groups": 0}, "out-of-range", {"setting": "num_groups", "got": 0}),
        (Rotated, {"alpha": 0.0}, "out-of-range", {"setting": "alpha", "got": 0.0}),
        (Rotated, {"examples_per_client": 0}, "out-of-range", {"setting": "examples_per_client", "got": 0}),
        (Rotated, {"degrees": (0, 90)}, "wrong-count", {"what": "degrees", "got": 2, "wanted": 4}),
        (Rotated, {"degrees": (0, 90, 180, 360)}, "wrong-value", {"setting": "degrees"}),
        (Rotated, {"degrees": (0, 90, 180, float("nan"))}, "wrong-value", {"setting": "degrees"}),
        (PermutedLabels, {"classes": 1}, "out-of-range", {"setting": "classes", "got": 1, "most": 6}),
        (PermutedLabels, {"classes": 7}, "out-of-range", {"setting": "classes", "got": 7}),
        (PermutedLabels, {"classes": "some"}, "out-of-range", {"setting": "classes", "got": "some"}),
        (ConditionalShift, {"classes": 0}, "out-of-range", {"setting": "classes", "got": 0}),
    ],
)
def test_settings_without_meaning_are_refused(shift: Any, settings: Any, code: str, fields: Any) -> None:
    with raises(UsageError, code, **fields):
        federate(squares(), shift(num_clients=8, **settings))


def test_two_classes_can_be_renamed_in_one_way() -> None:
    federation = federate(squares(num_classes=2), PermutedLabels(num_clients=4, num_groups=2, classes=2))
    own = parts(federation)[1]
    assert torch.equal(federation.data.labels[own], 1 - image_numbers(federation, own) % 2)
    with raises(UsageError, "out-of-range", setting="num_groups", most=2):
        federate(squares(num_classes=2), PermutedLabels(num_clients=4, num_groups=3, classes=2))


def test_too_many_clients_are_refused() -> None:
    with raises(UsageError, "too-few-examples", clients=241):
        federate(squares(), Rotated(num_clients=241))
    with raises(DataError, "too-few-examples", client="client-00"):
        federate(squares(), Rotated(num_clients=4, examples_per_client=1)).fold(0, 2)


def test_folds_cut_the_changed_examples() -> None:
    federation = federate(squares(), Rotated(num_clients=4)).fold(1, 5)
    for i, own in enumerate(parts(federation)):
        assert (len(own), len(federation.clients[i].test)) == (60, 12)
        assert quarter_turns(federation, own) == [i] * 60


def test_an_atlas_does_not_hold_the_types() -> None:
    federation = federate(squares(), Rotated(num_clients=4))
    atlas = label_histogram(federation)
    assert atlas.domains == (None,) * 4
    assert "rotated 90" not in repr(asdict(atlas))


def test_a_config_makes_the_federation_that_python_makes() -> None:
    table = {"name": "conditional-shift", "num_clients": 6, "num_groups": 3, "alpha": 0.5, "classes": "all"}
    config = Config.load(data={"source": "digits", "partition": table, "held_out": 3})
    found = Config.from_text(config.to_toml()).federation()
    wanted = federate(
        config.dataset(), ConditionalShift(num_clients=6, num_groups=3, alpha=0.5, classes="all"), held_out=3
    )
    assert torch.equal(found.data.inputs, wanted.data.inputs)
    assert torch.equal(found.data.labels, wanted.data.labels)
    assert [(c.type, c.held_out) for c in found] == [(c.type, c.held_out) for c in wanted]
    assert found.partition == wanted.partition
    table = {"name": "rotated", "num_clients": 4, "num_groups": 2, "degrees": [0, 9]}
    assert "degrees=(0, 9)" in Config.load(data={"source": "digits", "partition": table}).federation().partition
