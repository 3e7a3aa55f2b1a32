"""The data of a page: what each run, atlas and check brings to it, and how large it may become."""

import base64
import io
import json
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from fedatlas import Atlas, check, federate, load_dataset, train
from fedatlas.algorithms import fedavg
from fedatlas.atlas import principal
from fedatlas.data import NaturalId
from fedatlas.errors import RunFolderError, UsageError
from fedatlas.report import sources, write_page, write_report
from fedatlas.report.findings import keep_findings
from fedatlas.report.groups import group_runs
from fedatlas.report.members import MOST_SHOWN
from fedatlas.report.served import Served, differences
from fedatlas.report.sources import plane_quality, shorten, source_block
from fedatlas.runs import Run
from raising import raises
from report.pages import accuracies, read_block, unpack
from report.run_folders import FOUR, client, four_correct, write_run
from tiny import Norms, blob_federation

IMAGES = np.arange(4 * 8 * 3 * 4 * 4, dtype=np.uint32).astype(np.uint8).reshape(4, 8, 3, 4, 4)
VECTORS = np.array([[1, 0, 0], [1, 1, 0], [0, 1, 1], [0, 0, 1]], dtype=np.float32)


def page(runs: list[Run], folder: Path, **options: Any) -> dict[str, Any]:
    return read_block(write_page(folder / "page.html", runs=runs, **options))


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return write_run(tmp_path / "run", FOUR, four_correct, vectors=VECTORS, images=IMAGES)


@pytest.fixture
def other(tmp_path: Path) -> Run:
    return write_run(tmp_path / "other", FOUR, lambda r, c: 60, algorithm="fedprox", vectors=VECTORS, images=IMAGES)


def test_clients_are_columns_and_their_accuracy_has_wilson_s_interval(run: Run, tmp_path: Path) -> None:
    """Anna has 90 of 100: centre (.9 + .019207) / 1.038415 = .88522, half 1.96 / 1.038415 x sqrt(.0009960) = .05957."""
    block = page([run], tmp_path)
    clients, (own,) = block["clients"], block["algorithms"]
    assert clients["name"] == ["anna", "bert", "cleo", "dora"]
    assert [clients["domains"][i] for i in clients["domain"]] == ["x", "x", "y", "y"]
    assert clients["held_out"] == [0, 0, 0, 1]
    assert (clients["train"], clients["test"]) == ([40] * 4, [100, 100, 200, 100])
    assert unpack(clients["labels"]).reshape(4, 2)[0].tolist() == [191, 64]  # 30 and 10 of 40, of 255
    assert accuracies(own) == [0.9, 0.7, 0.5, 0.3]
    assert accuracies(own, "low")[0] == pytest.approx(0.88522 - 0.05957, abs=2e-4)
    assert accuracies(own, "high")[0] == pytest.approx(0.88522 + 0.05957, abs=2e-4)


def test_a_difference_of_seeds_is_paired(tmp_path: Path) -> None:
    """FedAvg .60, .62, .70, FedProx .61, .65, .72: differences .01, .03, .02: mean .02, half 4.303 x .01 / sqrt 3."""
    runs = []
    for name, values in (("fedavg", (60, 62, 70)), ("fedprox", (61, 65, 72))):
        for seed, right in enumerate(values):
            folder = tmp_path / f"{name}-{seed}"
            runs.append(write_run(folder, [client("a")], lambda r, c, n=right: n, algorithm=name, seed=seed))
    groups = group_runs(runs)
    served = [Served.read(group, runs[0].resolved["federation"]["fingerprint"], ["a"]) for group in groups]
    assert differences(served)[1][0] == [pytest.approx(0.02), pytest.approx(0.0248, abs=1e-4), "3 seeds"]
    assert differences(served)[0][1][0] == pytest.approx(-0.02)


def test_a_difference_of_one_seed_is_over_test_examples(run: Run, other: Run, tmp_path: Path) -> None:
    """65 % and 55 % of 400: .1, and 1.96 x sqrt((.65 x .35 + .55 x .45) / 400) = .0675."""
    flat = write_run(tmp_path / "flat", FOUR, lambda r, c: (55, 55, 110, 0)[c], algorithm="fedprox")
    block = page([run, flat], tmp_path)
    assert block["differences"][0][1] == [pytest.approx(0.1), pytest.approx(0.0675, abs=1e-4), "test examples"]


def test_the_curve_and_the_frames_follow_the_rounds(run: Run, tmp_path: Path) -> None:
    """Anna has all right in round 2; over the three that train (100 + 70 + 100) / 400 = .675."""
    (own,) = page([run], tmp_path)["algorithms"]
    assert own["curve"]["train"]["rounds"] == [1, 2, 3]
    assert own["curve"]["train"]["mean"] == [0.65, 0.675, 0.65]
    assert own["curve"]["held_out"]["mean"] == [0.3] * 3
    table = unpack(own["frames"]["value"]).reshape(3, 4)
    assert table[:, 0].tolist() == [225, 250, 225]  # of 250


def test_weights_are_of_every_round_and_absent_where_a_client_did_not_train(run: Run, tmp_path: Path) -> None:
    """Anna counts for 3/4 in rounds 1 and 3, Bert for 1/4 and in round 2 for all; of 254, the largest weight."""
    assert page([run], tmp_path)["algorithms"][0]["weights"] is None
    path = run.folder / "clients.jsonl"
    known = {("anna", 1): 0.75, ("bert", 1): 0.25, ("bert", 2): 1.0, ("anna", 3): 0.75, ("bert", 3): 0.25}
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    weighed = [
        line | ({"weight": known[key]} if (key := (line["client"], line["round"])) in known else {}) for line in lines
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in weighed))
    (own,) = page([Run(run.folder)], tmp_path)["algorithms"]
    assert own["weights"]["rounds"] == [1, 2, 3]
    assert own["weights"]["largest"] == 1.0
    table = unpack(own["weights"]["table"]).reshape(3, 4)
    assert table.tolist() == [[190, 64, 255, 255], [255, 254, 255, 255], [190, 64, 255, 255]]


def test_rows_of_a_table_are_on_the_page_and_not_in_a_copy_to_share(tmp_path: Path) -> None:
    federation = federate(load_dataset("heart"), NaturalId())
    block = read_block(write_page(tmp_path / "page.html", federation=federation))
    own = block["rows"]["0"]
    assert own["columns"][0] == "label"
    assert {row[0] for row in own["rows"]} == {"healthy", "ill"}
    assert len(own["here"]) == len(own["others"]) == len(own["columns"]) == 5
    assert "rows" not in read_block(write_page(tmp_path / "shared.html", federation=federation, share=True))


def test_rows_that_are_no_texts_are_refused(run: Run, tmp_path: Path) -> None:
    np.savez(run.folder / "portraits.npz", vectors=VECTORS, rows=np.zeros((1, 3, 2)), pictured=np.arange(1))
    with raises(RunFolderError, "file-unreadable"):
        page([run], tmp_path)


def test_accuracy_by_class_is_shown_where_the_run_records_it(run: Run, tmp_path: Path) -> None:
    assert page([run], tmp_path)["algorithms"][0]["classes"] is None
    path = run.folder / "clients.jsonl"
    lines = [json.loads(line) | {"recall_per_class": [0.25, None]} for line in path.read_text().splitlines()]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert page([Run(run.folder)], tmp_path)["algorithms"][0]["classes"]["2"] == [0.25, None]


def test_short_vectors_keep_cosines(run: Run, tmp_path: Path) -> None:
    """(1, 0, 0) and (1, 1, 0): 1 / sqrt 2; (1, 1, 0) and (0, 1, 1): 1 / 2."""
    (source,) = page([run], tmp_path)["sources"]
    rows = unpack(source["vectors"]).reshape(4, source["width"]) * source["scale"]
    assert rows[0] @ rows[1] == pytest.approx(0.7071, abs=0.02)
    assert rows[1] @ rows[2] == pytest.approx(0.5, abs=0.02)
    assert source["error"] < 0.02
    assert sorted(source["order"]) == [0, 1, 2, 3]


def test_wide_vectors_are_cut_to_what_fits_and_the_error_is_told() -> None:
    rows = torch.nn.functional.normalize(torch.randn(500, 700, generator=torch.Generator().manual_seed(0)), dim=1)
    block = source_block("a", "a", "a", rows, np.arange(500), seed=0, methods=("pca",))
    assert block["width"] == 32
    assert 0 < block["error"] < 0.2  # noise has no few directions; half a cosine of .1 is lost
    assert len(json.dumps(block)) < 60_000
    short, scale = shorten(torch.eye(3))
    np.testing.assert_allclose(np.abs(short * scale), np.eye(3)[:, [2, 1, 0]], atol=1e-9)


def test_a_plane_that_is_the_vectors_keeps_all_and_a_line_does_not() -> None:
    points = np.random.default_rng(0).normal(size=(40, 2))
    assert plane_quality(points, 3 * points) == (1.0, 1.0)
    distance, near = plane_quality(points, points * [1, 0])
    assert distance is not None
    assert near is not None
    assert distance < 0.9
    assert near < 0.8
    assert plane_quality(points[:2], points[:2]) == (None, None)


def test_the_run_s_own_atlas_comes_first(run: Run, tmp_path: Path) -> None:
    halves = {"feature": torch.tensor(VECTORS), "label": torch.eye(4)}
    atlas = Atlas(names=("anna", "bert", "cleo", "dora"), halves=halves, sizes=torch.full((4,), 40))
    atlas.save(run.folder / "atlas.safetensors")
    sources = page([Run(run.folder)], tmp_path)["sources"]
    titles = [f"the run's atlas, {half}" for half in ("both halves", "feature half", "label half")]
    assert [source["title"] for source in sources] == [*titles, "plain statistics"]
    rows = unpack(sources[0]["vectors"]).reshape(4, -1) * sources[0]["scale"]
    assert rows[0] @ rows[1] == pytest.approx(0.7071 / 2, abs=0.02)  # the mean of .7071 and 0
    assert [plane["method"] for plane in sources[0]["planes"]][:2] == ["pca", "tsne"]


def test_pictures_are_strips_of_the_clients_images(run: Run, tmp_path: Path) -> None:
    pictures = page([run], tmp_path)["pictures"]
    assert sorted(pictures) == ["0", "1", "2", "3"]
    strip = Image.open(io.BytesIO(base64.b64decode(pictures["1"]["image"].partition(",")[2])))
    assert (strip.size, pictures["1"]["count"]) == ((8 * 4, 4), 8)


def test_the_worst_are_told_why(tmp_path: Path) -> None:
    clients = [client(f"c{i}", labels=(60, 60)) for i in range(8)]
    clients += [client("small", labels=(10, 0), num_test=9), client("out", held_out=True, labels=(60, 60))]
    run = write_run(tmp_path / "run", clients, lambda r, c: 50 if c < 8 else 1)
    reasons = page([run], tmp_path)["reasons"]
    small = {own["kind"]: own["text"] for own in reasons["8"]}
    assert small["few-examples"] == "10 training examples; the median client has 120"
    assert small["classes-missing"] == "no training example of 1 of 2 classes: 1"
    assert small["few-tests"] == "only 9 test examples, so its result may be chance"
    assert {own["kind"] for own in reasons["9"]} == {"held-out"}
    assert "0" not in reasons


def test_a_check_is_on_the_page_of_the_run_that_it_was_kept_with(tmp_path: Path) -> None:
    federation = federate(load_dataset("heart"), NaturalId(min_samples=1))
    diagnosis = check(federation, given="--data heart")
    block = read_block(
        write_page(tmp_path / "a.html", federation=federation, diagnosis=diagnosis, given="--data heart")
    )
    names = block["clients"]["name"]
    assert {names[own["client"]] for own in block["check"]["suspects"]} == {"switzerland", "va"}
    assert next(own["key"] for own in block["groupings"]) == "check"
    assert block["sources"][0]["title"] == "what the check compared"
    assert block["advice"][0]["command"] == "fedatlas check --data heart"
    run = train(federation, fedavg(), rounds=1, model="linear", workers=1, folder=tmp_path / "run")
    assert page([run], tmp_path)["check"] is None
    keep_findings(diagnosis, run.folder)
    kept = page([run], tmp_path)
    assert kept["check"] == block["check"]
    assert kept["reasons"].keys() >= {str(own["client"]) for own in block["check"]["suspects"]}
    (run.folder / "check.json").write_text('{"shift": 3}')
    with raises(RunFolderError, "file-altered", path=str(run.folder / "check.json")):
        page([run], tmp_path)


def test_an_atlas_alone_has_a_page(tmp_path: Path) -> None:
    atlas = Atlas(names=("a", "b", "c"), halves={"label": torch.eye(3)}, sizes=torch.tensor([1, 2, 3]))
    block = read_block(write_page(tmp_path / "page.html", atlas=atlas))
    assert block["clients"]["name"] == ["a", "b", "c"]
    assert block["clients"]["train"] == [1, 2, 3]
    assert (block["algorithms"], block["settings"], block["act"]) == ([], None, None)


def test_settings_that_differ_are_told_apart(run: Run, other: Run, tmp_path: Path) -> None:
    settings = page([run, other], tmp_path)["settings"]
    assert settings["differ"] == [{"key": "algorithm.name", "values": ["fedavg", "fedprox"]}]
    assert {"key": "training.batch_size", "value": "32"} in settings["shared"]
    assert [own["command"] for own in settings["runs"]] == [None, None]
    (run.folder / "config.toml").write_text("seed = 0\n")
    own = page([Run(run.folder)], tmp_path)["settings"]["runs"][0]
    assert own["command"] == f"fedatlas train --config {run.folder / 'config.toml'} --folder {run.folder}-again"


def test_actions_are_made_of_the_run_s_config(run: Run, tmp_path: Path) -> None:
    assert page([run], tmp_path)["act"] is None  # made from Python: nothing names its data
    (run.folder / "config.toml").write_text('seed = 3\n[data]\nsource = "toy"\nleave_out = ["eve"]\n')
    act = page([Run(run.folder)], tmp_path)["act"]
    assert act["given"] == f"--config {run.folder / 'config.toml'}"
    assert (act["held_out"], act["leave_out"], act["use"]) == (["dora"], ["eve"], ["sample", "aggregate"])
    values = tomllib.loads(act["config"])
    assert (values["seed"], values["data"]["source"]) == (3, "toy")
    assert values["data"]["held_out"] == "@held_out@"


BAD = "</script><img src=x onerror=alert(1)>&amp;\u202e\"'" + "x" * 300


def test_names_cannot_leave_the_data(tmp_path: Path) -> None:
    clients = [client(BAD, BAD), client("plain", "y"), client("third", BAD, held_out=True)]
    runs = [
        write_run(tmp_path / f"{i}", clients, lambda r, c: 50, algorithm=name, data=BAD, vectors=VECTORS[:3])
        for i, name in enumerate((BAD, "plain"))
    ]
    path = write_page(tmp_path / "page.html", runs=runs)
    text = path.read_text()
    assert "<img" not in text
    assert text.count("</script>") == 2  # the data's and the script's
    assert read_block(path)["clients"]["name"][0] == BAD


def test_the_page_needs_nothing_from_outside(run: Run, tmp_path: Path) -> None:
    text = write_report([run], tmp_path / "page.html").read_text()
    assert "default-src 'none'" in text
    assert "http" not in text.replace("http-equiv", "").replace("http://www.w3.org/2000/svg", "")
    assert "url(" not in text


def test_a_shared_copy_has_no_names_pictures_paths_or_small_groups(tmp_path: Path) -> None:
    clients = [client(f"hospital-{i}", "north" if i < 6 else "south") for i in range(9)]
    images = np.zeros((9, 8, 3, 4, 4), np.uint8)
    vectors = np.eye(9, dtype=np.float32)
    run = write_run(tmp_path / "secret", clients, lambda r, c: 50, images=images, vectors=vectors)
    (run.folder / "config.toml").write_text("seed = 0\n")
    path = write_page(tmp_path / "shared.html", runs=[run], share=True)
    block, text = read_block(path), path.read_text()
    for word in ("hospital", "north", "south", "secret", "data:image"):
        assert word not in text, word
    assert block["clients"]["name"][0] == "client 1"
    assert block["clients"]["domains"] == ["domain 1"]  # south has three clients
    assert block["clients"]["domain"] == [0] * 6 + [-1] * 3
    assert block["shared"]
    assert block["noise"] == "No noise was added to the vectors."


def test_the_noise_of_an_atlas_is_told(tmp_path: Path) -> None:
    atlas = Atlas(names=("a", "b"), halves={"label": torch.eye(2)}, sizes=torch.tensor([1, 2]))
    noisy = atlas.with_noise(clip=1.0, epsilon=2.0)
    block = read_block(write_page(tmp_path / "page.html", atlas=noisy, share=True))
    said = "Gaussian noise was added to the vectors (epsilon 2, delta 1e-05; it protects each client)."
    assert block["noise"] == said


@pytest.fixture
def quick_planes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take principal components for t-SNE, which takes long and leaves as many numbers."""
    monkeypatch.setattr(sources, "place", lambda points, method, seed: principal(points))


@pytest.mark.usefixtures("quick_planes")
def test_a_thousand_clients_fit_into_a_megabyte(tmp_path: Path) -> None:
    clients = [client(f"client-{i:04d}", f"domain-{i % 7}", labels=(3,) * 10) for i in range(1000)]
    vectors = np.random.default_rng(0).normal(size=(1000, 40)).astype(np.float32)
    run = write_run(tmp_path / "run", clients, lambda r, c: c % 100, rounds=30, vectors=vectors)
    path = write_page(tmp_path / "page.html", runs=[run])
    assert path.stat().st_size < 1_000_000
    assert len(read_block(path)["clients"]["name"]) == 1000


@pytest.mark.usefixtures("quick_planes")
def test_of_very_many_clients_the_worst_are_shown_and_all_are_in_the_backdrop(tmp_path: Path) -> None:
    count = MOST_SHOWN + 500
    clients = [client(f"client-{i}", labels=(2, 1)) for i in range(count)]
    run = write_run(tmp_path / "run", clients, lambda r, c: 1 if c == count - 1 else 50 + c % 50, rounds=1)
    block = page([run], tmp_path)
    assert len(block["clients"]["name"]) == MOST_SHOWN
    assert block["clients"]["name"][-1] == f"client-{count - 1}"
    assert block["sample"]["of"] == count
    plane = block["sources"][0]["planes"][0]
    assert unpack(plane["backdrop"]["cells"]).max() == 255


def test_runs_that_hardly_began_have_a_page(tmp_path: Path) -> None:
    begun = write_run(tmp_path / "begun", FOUR, four_correct, rounds=3, planned=10, evaluated=[], vectors=VECTORS)
    (own,) = page([begun], tmp_path)["algorithms"]
    assert (own["rounds"], own["planned"], own["curve"], own["frames"]) == (3, 10, {}, None)
    assert accuracies(own) == [None] * 4
    killed = write_run(tmp_path / "killed", FOUR, four_correct, rounds=0, planned=5)
    assert page([killed], tmp_path)["algorithms"][0]["rounds"] == 0
    alone = write_run(tmp_path / "alone", [client("alone")], lambda r, c: 50, vectors=np.zeros((1, 3), np.float32))
    assert page([alone], tmp_path)["sources"] == []


def test_clients_that_were_brought_in_later_are_told(run: Run, tmp_path: Path) -> None:
    record = {"client": "dora", "round": 7, "domain": "y", "origin": "mean", "num_examples": 40, "num_steps": 100}
    record |= {"num_tuned": 3, "seconds": 1.25, "accuracy_before": 0.3, "accuracy_after": 0.45, "embedding": None}
    (run.folder / "adapted.json").write_text(json.dumps([record]))
    (own,) = page([run], tmp_path)["algorithms"]
    assert [(one["client"], one["before"], one["after"]) for one in own["newcomers"]] == [("dora", 0.3, 0.45)]


def test_runs_on_other_splits_count_in_the_mean_and_not_by_client(tmp_path: Path) -> None:
    clients = [client("a"), client("b")]
    one = write_run(tmp_path / "one", clients, lambda r, c: 40, fingerprint="one")
    two = write_run(tmp_path / "two", clients, lambda r, c: 80, fingerprint="two", seed=1)
    (own,) = page([one, two], tmp_path)["algorithms"]
    assert own["metrics"][0]["mean"] == pytest.approx(0.6)
    assert accuracies(own) == [0.4, 0.4]
    assert (own["seeds"], own["alike"]) == (2, 1)


def test_portraits_of_another_run_are_refused(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", FOUR, four_correct, vectors=VECTORS[:2])
    with raises(RunFolderError, "wrong-count", got=2, wanted=4):
        page([run], tmp_path)


def test_portraits_that_were_cut_short_are_refused(run: Run, tmp_path: Path) -> None:
    path = run.folder / "portraits.npz"
    path.write_bytes(path.read_bytes()[:200])
    with raises(RunFolderError, "file-unreadable", path=str(path)):
        page([run], tmp_path)


def test_a_page_that_cannot_be_written_says_so(run: Run, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with raises(RunFolderError, "file-unwritable", path=str(tmp_path / "file")):
        write_report([run], tmp_path / "file" / "report.html")


def test_nothing_to_show_is_refused(tmp_path: Path) -> None:
    with raises(UsageError, "data-empty", what="runs"):
        write_report([], tmp_path / "report.html")


def test_a_run_that_was_trained_has_a_page(tmp_path: Path) -> None:
    run = train(blob_federation(6, held_out=1), fedavg(), model=Norms(), rounds=2, workers=1, folder=tmp_path / "run")
    block = read_block(run.report())
    (own,) = block["algorithms"]
    assert own["metrics"][0]["mean"] == pytest.approx(run.last["accuracy"], abs=1e-4)
    assert unpack(own["clients"]["took_part"]).tolist() == [2 * (1 - out) for out in block["clients"]["held_out"]]
    assert own["disclosed"] == ["the number of its examples, and the change of the model in each round it took part in"]
