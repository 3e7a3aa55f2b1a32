import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from fedatlas.config import Config
from fedatlas.data import Dataset, Iid, federate
from fedatlas.errors import UsageError
from fedatlas.seeds import numpy_generator
from fedatlas.training import make_model
from papers.fedpce import figure_4, measuring, setting, table_1, table_2, table_3, table_4, table_5
from papers.fedpce.measuring import client_figures, collaborative_figures, few_images, personalised
from papers.kept_results import read_packed
from papers.options import Options
from papers.tables import UNFINISHED, Task, Variant, measure, render
from raising import raises

EVIDENCE = Path(__file__).parents[2] / "docs" / "evidence"

EXTRA = {
    "stem": "cifar",
    "adapt_rounds": 40,
    "precision": "float32",
    "compile": False,
    "minutes": 0.0,
    "finish": False,
    "deadline": None,
}


def options(out: Path = Path("out"), **extra: object) -> Options:
    return Options(quick=True, rounds=2, out=out, workers=1, extra={**EXTRA, **extra})


def test_the_methods_have_the_papers_numbers_of_parameters() -> None:
    """Table 1 and Section 4.3: 11.2M, conditioned 11.9M, with 62 channels 0.54 % above 11.2M."""
    images = torch.zeros(2, 3, 32, 32, dtype=torch.uint8)
    classes = tuple("0123456789")
    data = Dataset(name="blank", inputs=images, labels=torch.tensor([0, 1]), classes=classes)
    full = Options(rounds=200, extra=EXTRA)
    counts = {}
    for method in setting.METHODS:
        sections = setting.variant("CIFAR-10", method, full).settings["sections"]
        config = Config.load(**{key: value for key, value in sections.items() if key != "data"})
        model, given = config.model()
        network = make_model(model, given, federate(data, Iid(num_clients=1)), config.algorithm(), 0)
        counts[method] = sum(parameter.numel() for parameter in network.parameters())
    # The embedding is counted with the model here: 32 more than what all clients share.
    assert counts["FedPCE"] - 32 == 11_943_626
    assert counts["FedPCE(62)"] - 32 == 11_235_384
    assert {counts[method] for method in ("FedAvg", "FedProx", "FedPer", "FedBN")} == {11_174_986}


def test_new_clients_count_by_test_images_and_their_kinds_by_clients() -> None:
    """Two noisy clients of 10 and 30 test images. At the first look 0.5 and 0.7: (5 + 21) / 40 = 0.65, the best; at the
    end 0.6 and 0.6. By kind, without weights, the best look has (0.5 + 0.7) / 2 = 0.6."""
    common = {"domain": "noise", "num_tuned": 32, "seconds": 1.0}
    clients = [
        {**common, "accuracy_before": 0.9, "accuracy_after": 0.6, "curve": {"4": 0.5}, "num_tested": 10},
        {**common, "accuracy_before": 0.1, "accuracy_after": 0.6, "curve": {"4": 0.7}, "num_tested": 30},
    ]
    figures = client_figures(clients)
    assert figures["cl_before"] == pytest.approx(0.3)
    assert figures["cl_best"] == pytest.approx(0.65)
    assert figures["cl_noise"] == pytest.approx(0.6)
    assert figures["cl_last"] == pytest.approx(0.6)


def test_where_nothing_is_tuned_the_untuned_accuracy_is_the_figure() -> None:
    one = {"domain": "jitter", "num_tuned": 0, "seconds": 0.0, "num_tested": 10, "curve": {}}
    figures = client_figures([{**one, "accuracy_before": 0.4, "accuracy_after": 0.4}])
    assert figures["cl_best"] == figures["cl_last"] == figures["cl_jitter"] == 0.4


def test_the_tables_hold_all_methods_and_the_papers_numbers() -> None:
    full = Options(rounds=50, extra=EXTRA)
    for title in setting.SETS:
        assert set(table_1.table_1(title, full).rows) == set(setting.METHODS)
    text = render(table_2.table_2("CIFAR-10", full), {"CIFAR-10 FedPCE": [{"cl_noise": 0.5, UNFINISHED: "round 3"}]})
    assert "50.0\\* (48.92)" in text
    assert "CIFAR-10 FedPCE: round 3" in text


def test_digits_are_told_apart_by_set_without_a_paper_s_numbers() -> None:
    table = table_2.table_2("Digits", Options(rounds=50, extra=EXTRA))
    text = render(table, {"Digits FedBN": [{"col_usps": 0.75, "cl_usps": 0.5}]})
    assert "| mnist, col. tr. | mnist, cl. tr. | usps, col. tr. | usps, cl. tr. |" in text
    assert "| FedBN | – | – | 75.0 | 50.0 |" in text


def test_table_1_counts_parameters_as_the_paper_does() -> None:
    table = table_1.table_1("CIFAR-10", Options(rounds=50, extra=EXTRA))
    text = render(table, {"CIFAR-10 FedBN": [{"parameters": 11_174_986, "tuned": 10_624}] * 2})
    assert "| 11.2 ± 0.0 (11.2) | 10624 ± 0 (10600) |" in text


def test_what_stands_in_for_syn_is_said_where_there_is_any() -> None:
    full = Options(rounds=50, extra=EXTRA)
    assert "Generated printed digits stand in for SYN." in setting.said(full, "Digits")
    assert "SYN" not in setting.said(full, "CIFAR-10")
    assert "With `--quick`" in setting.said(options(), "Digits")


def test_a_set_that_a_table_does_not_have_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["table_2", "--quick", "--sets", "CIFAR-10,PACS", "--only", "^$"])
    with pytest.raises(SystemExit, match="2"):
        table_2.main()
    assert "unknown name in --sets 'PACS'" in capsys.readouterr().err


def test_quick_versions_of_an_ablation_differ_as_the_whole_ones_do(tmp_path: Path) -> None:
    for table in (table_3, table_4, table_5):
        made = {value: table.made(options(tmp_path), value).key for value in table.PAPER}
        assert len(set(made.values())) == len(made)
    for count in table_4.PAPER:
        sections = table_4.made(options(), count).settings["sections"]
        federation = Config.load(data=sections["data"]).federation()
        assert len(federation) == sections["data"]["partition"]["num_clients"]


def test_few_images_say_where_the_other_method_is_ahead() -> None:
    curves = {
        "FedPCE": [{"images": 2, "accuracy": 0.6}, {"images": 800, "accuracy": 0.61}],
        "FedBN": [{"images": 2, "accuracy": 0.5}, {"images": 800, "accuracy": 0.7}],
    }
    text = figure_4.few_table(curves, "words.")
    assert "| 2 | 60.0 | 50.0 |" in text
    assert "FedBN is ahead at 800 images" in text


def test_a_training_that_runs_out_of_time_is_kept_and_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = setting.variant("CIFAR-10", "FedPCE", options())
    sections = {**small.settings["sections"], "model": {"name": "cnn", "width": 4, "norm": "instance"}}
    rng = numpy_generator(0, "pictures")
    pictures = rng.integers(256, size=(240, 8, 8, 3), dtype=np.uint8)
    np.savez(tmp_path / "pictures.npz", x=pictures, y=np.arange(240) % 10)
    sections["data"] = {**sections["data"], "source": str(tmp_path / "pictures.npz")}
    few = {**small.settings, "sections": sections, "adapt": {"rounds": 1, "steps": 2}, "few": [2]}
    task = Task(name="FedPCE", settings=few, seed=0, options=options(tmp_path, deadline=0.0), folder=tmp_path / "task")
    first = personalised(task)
    assert first[UNFINISHED] == "round 1 of 2"
    assert 0 <= first["col_best"] <= 1
    finish = options(tmp_path, finish=True)
    short = personalised(Task(name="FedPCE", settings=few, seed=0, options=finish, folder=tmp_path / "task"))
    assert (short[UNFINISHED], short["rounds"], short["tuned"]) == ("round 1 of 2", 1, 32)
    task = Task(name="FedPCE", settings=few, seed=0, options=options(tmp_path), folder=tmp_path / "task")
    whole = personalised(task)
    assert UNFINISHED not in whole
    assert (whole["rounds"], whole["tuned"], len(whole["few"])) == (2, 32, 1)
    assert whole["images"] == 2 * 9 * 4 * 16
    kept = json.loads((tmp_path / "task/adapted.json").read_text())
    assert (kept["round"], kept["clients"][0]["num_tuned"]) == (2, 32)  # tuned anew, from the longer training
    monkeypatch.setattr(measuring.Adapter, "adapt_all", None)
    assert personalised(task) == whole  # nothing is measured again


def test_unfinished_numbers_are_measured_again(tmp_path: Path) -> None:
    calls: list[int] = []
    variant = Variant(name="a", measure=lambda task: growing(calls), settings={})
    chosen = Options(out=tmp_path, extra=EXTRA)
    assert measure([variant], chosen)["a"] == [{"best": 0.1, UNFINISHED: "half"}]
    assert measure([variant], chosen)["a"] == [{"best": 0.2}]
    assert measure([variant], chosen)["a"] == [{"best": 0.2}]
    assert len(calls) == 2


def growing(calls: list[int]) -> dict[str, object]:
    calls.append(1)
    return {"best": 0.1, UNFINISHED: "half"} if len(calls) == 1 else {"best": 0.2}


def test_kinds_are_shown_at_the_best_look_and_at_the_last() -> None:
    """At the first look 0.5 and 0.7 of 10 and 30 images, 0.65 together; at the end 0.8 and 0.5, 0.575 together."""
    common = {"domain": "noise", "num_tuned": 32, "seconds": 1.0, "accuracy_before": 0.1}
    clients = [
        {**common, "accuracy_after": 0.8, "curve": {"4": 0.5}, "num_tested": 10},
        {**common, "accuracy_after": 0.5, "curve": {"4": 0.7}, "num_tested": 30},
    ]
    figures = client_figures(clients)
    assert (figures["cl_noise"], figures["cl_last_noise"]) == pytest.approx((0.6, 0.65))


def test_collaborative_training_is_told_at_its_best_and_its_last_round() -> None:
    """Three rounds of 50 steps on 8 images by two clients, of which in the last one did not answer: 5 * 400 images."""
    rounds = [
        {
            "round": i,
            "cohort": [0, 1],
            "answered": [0, 1][: 3 - max(i, 1)],
            "own": {"accuracy": own},
            "evaluation": {"accuracy": 0.1},
        }
        for i, own in enumerate((0.5, 0.7, 0.6))
    ]
    resolved = {
        "training": {"steps": 50, "batch_size": 8},
        "model": {"num_parameters": 7},
        "machine": {"name": "here"},
    }
    last = {"accuracy": 0.4}
    run: Any = SimpleNamespace(rounds=rounds, resolved=resolved, last=last, best={"accuracy": 0.45}, seconds=1.0)
    figures = collaborative_figures(run)
    assert (figures["col_best"], figures["col_last"], figures["shared_last"]) == (0.7, 0.6, 0.4)
    assert figures["images"] == 5 * 400


def test_a_client_with_fewer_images_than_asked_for_has_all_it_has() -> None:
    """Two held-out clients of 3 and 9 images, asked for 5: 3 and 5. Of 10 test images each, 4 and 8 are right after."""
    members = [SimpleNamespace(name=name, held_out=True, train=range(count)) for name, count in (("a", 3), ("b", 9))]
    asked: list[int] = []

    def adapt_all(names: list[str], *, examples: list[int], **plan: Any) -> list[Any]:
        asked.extend(examples)
        right = {"a": 4, "b": 8}
        return [
            SimpleNamespace(
                domain="noise",
                before=SimpleNamespace(accuracy=0.1, num_examples=10),
                after=SimpleNamespace(num_examples=10, accuracy=right[name] / 10),
            )
            for name in names
        ]

    adapter: Any = SimpleNamespace(federation=members, adapt_all=adapt_all)
    (found,) = few_images(adapter, [5], {})
    assert asked == [3, 5]
    assert found == {"images": 5, "accuracy": 0.6, "before": 0.1, "noise": pytest.approx(0.6)}


def test_the_stem_is_told_apart_and_what_was_measured_is_found() -> None:
    """The kept numbers are of the stem with the max-pool; without it nothing is measured yet under the same title."""
    kept = read_packed(EVIDENCE / "fedpce.json")
    extra = {**EXTRA, "precision": "bfloat16", "compile": True, "adapt_rounds": 40}
    for stem, there in (("cifar-pool", True), ("cifar", False)):
        given = Options(rounds=200, extra={**extra, "stem": stem})
        found = [f"{one.key}-0" in kept for one in setting.all_methods("CIFAR-10", given)]
        if there:
            assert all(found)
        assert table_1.table_1("CIFAR-10", given).title == f"Table 1, CIFAR-10{' with max-pool' if there else ''}"
        assert f"stem {stem}." in setting.said(given)
    with raises(UsageError, "unknown-name", got="cifar-pol"):
        setting.variant("CIFAR-10", "FedAvg", Options(extra={**EXTRA, "stem": "cifar-pol"}))
