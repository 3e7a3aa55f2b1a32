"""``fedatlas map``, and the atlas that it makes in a training."""

import inspect
import re
from pathlib import Path

import numpy as np
import pytest

from commands import SMALL, invoke
from fedatlas.atlas import EPOCHS, Atlas
from fedatlas.cli.map import map_
from fedatlas.runs import Run


@pytest.mark.filterwarnings("default")
def test_a_warning_is_a_line_and_the_page_is_named(tmp_path: Path) -> None:
    owner = ["a"] * 9 + ["b"] * 9 + ["c"]
    np.savez(tmp_path / "own.npz", x=np.eye(19, dtype=np.float32), y=np.arange(19) % 2, owner=owner)
    result = invoke("map", "--data", tmp_path / "own.npz", "--source", "label-histogram", "--to", tmp_path / "a.st")
    assert result.exit_code == 0, result.output
    assert re.search("^note: natural-id: 1 of 3 owners in own .* left out: c", result.output, re.M)
    assert f"page: {tmp_path / 'a.html'}" in result.output


def test_an_atlas_is_made_of_the_vectors_of_a_file(tmp_path: Path) -> None:
    """All examples of a client have one vector, so that is their mean."""
    owner = np.repeat(["a", "b"], 8)
    np.savez(tmp_path / "own.npz", x=np.eye(16, dtype=np.float32), y=np.arange(16) % 2, owner=owner)
    vectors = np.repeat([[3.0, 0.0, 4.0], [0.0, 2.0, 0.0]], 8, axis=0).astype(np.float32)
    np.savez(tmp_path / "vectors.npz", examples=vectors, classes=np.eye(2, 3, dtype=np.float32))
    made = [
        "map",
        "--data",
        tmp_path / "own.npz",
        "--source",
        "feature-average",
        "--to",
        tmp_path / "a.safetensors",
    ]
    result = invoke(*made, "--encoder", "precomputed", "--encoder-path", tmp_path / "vectors.npz")
    assert result.exit_code == 0, result.output
    atlas = Atlas.load(tmp_path / "a.safetensors")
    assert atlas.names == ("a", "b")
    assert atlas.half("feature").tolist() == [[3.0, 0.0, 4.0], [0.0, 2.0, 0.0]]
    for given, said in (
        (["--encoder", "precomputed"], "give --encoder-path FILE"),
        (["--encoder-path", tmp_path / "vectors.npz"], "--encoder builtin has none"),
        (["--encoder", "precomputed", "--encoder-path", tmp_path / "else.npz"], "there is no such file"),
    ):
        result = invoke(*made, *given)
        assert result.exit_code == 2
        assert said in " ".join(result.output.split())


def test_an_atlas_is_mapped_and_used(arrays: Path, tmp_path: Path) -> None:
    atlas = tmp_path / "labels.safetensors"
    result = invoke("map", "--data", arrays, "--source", "label-histogram", "--to", atlas)
    assert result.exit_code == 0, result.output
    assert "what left each client: the client's vector: the share of each class" in result.output
    assert (tmp_path / "labels.html").exists()
    settings = ["--data", arrays, *SMALL, "--atlas", atlas, "--use", "sample,aggregate", "--set", "training.cohort=2"]
    result = invoke("train", *settings, "--folder", tmp_path / "run")
    assert result.exit_code == 0, result.output
    algorithm = Run(tmp_path / "run").resolved["algorithm"]
    assert algorithm["name"] == "client2vec"
    assert algorithm["sampler"]["part"] == "SimilarToLast"
    result = invoke("train", *settings, "--use", "trian", "--folder", tmp_path / "other")
    assert "Did you mean 'train'" in result.output.replace("\n", " ")


def test_map_makes_as_many_passes_as_the_function_does() -> None:
    assert inspect.signature(map_).parameters["epochs"].default == EPOCHS
