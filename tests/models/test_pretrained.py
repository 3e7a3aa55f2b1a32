import json
import os
import pickle
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from fedatlas.errors import UsageError
from fedatlas.models import Classifier, build_model
from raising import raises


def resnet(num_classes: int = 4, seed: int = 0, **options: Any) -> Classifier:
    return build_model("resnet18", num_classes=num_classes, input_shape=(3, 8, 8), seed=seed, width=2, **options)


def mobilenet(num_classes: int = 4, seed: int = 0, **options: Any) -> Classifier:
    return build_model("mobilenet_v2", num_classes=num_classes, input_shape=(3, 8, 8), seed=seed, width=0.1, **options)


def published(model: Classifier, head: str) -> dict[str, Tensor]:
    """Return the weights under torchvision's names."""
    return {name.replace("head.", head): value.clone() for name, value in model.state_dict().items()}


def assert_same(model: Classifier, other: Classifier, but: tuple[str, ...] = ()) -> None:
    expected = other.state_dict()
    for name, value in model.state_dict().items():
        assert name.startswith(but) or torch.equal(value, expected[name]), name


@pytest.mark.parametrize("suffix", [".safetensors", ".pth"])
def test_resnet_reads_torchvision_s_names(tmp_path: Path, suffix: str) -> None:
    source = resnet(seed=1)
    file = tmp_path / f"weights{suffix}"
    weights = published(source, "fc.")
    assert "fc.weight" in weights
    save_file(weights, file) if suffix == ".safetensors" else torch.save(weights, file)
    assert_same(resnet(pretrained=str(file)), source)
    assert_same(resnet(pretrained=str(tmp_path)), source)


def test_mobilenet_reads_torchvision_s_names(tmp_path: Path) -> None:
    source = mobilenet(seed=1)
    torch.save(published(source, "classifier.1."), tmp_path / "weights.pth")
    assert_same(mobilenet(pretrained=str(tmp_path)), source)


def test_mobilenet_reads_timm_s_names(tmp_path: Path) -> None:
    """timm's fifth stage, second block, is the thirteenth block: 1 + 1 + 2 + 3 + 4 + 1 = features.12."""
    source = mobilenet(seed=1)
    state = source.state_dict()
    stages = [(stage, block) for stage, blocks in enumerate((1, 2, 3, 4, 3, 3, 1)) for block in range(blocks)]
    named = {"conv_stem": "features.0.0", "bn1": "features.0.1", "conv_head": "features.18.0", "bn2": "features.18.1"}
    named["classifier"] = "head"
    for position, (stage, block) in enumerate(stages, start=1):
        layers = ["conv_dw", "bn1", "conv_pw", "bn2"]
        places = ["0.0", "0.1", "1", "2"]
        if stage:
            layers = ["conv_pw", "bn1", "conv_dw", "bn2", "conv_pwl", "bn3"]
            places = ["0.0", "0.1", "1.0", "1.1", "2", "3"]
        for layer, place in zip(layers, places, strict=True):
            named[f"blocks.{stage}.{block}.{layer}"] = f"features.{position}.conv.{place}"
    assert named["blocks.4.1.bn3"] == "features.12.conv.3"
    weights = {
        f"{theirs}.{name.removeprefix(ours + '.')}": value.clone()
        for theirs, ours in named.items()
        for name, value in state.items()
        if name.startswith(ours + ".")
    }
    assert len(weights) == len(state)
    save_file(weights, tmp_path / "model.safetensors")
    assert_same(mobilenet(pretrained=str(tmp_path)), source)


def test_the_head_keeps_its_start_where_the_number_of_classes_differs(tmp_path: Path) -> None:
    source = resnet(num_classes=7, seed=1)
    torch.save(published(source, "fc."), tmp_path / "weights.pth")
    model = resnet(seed=2, head_norm=True, pretrained=str(tmp_path))
    assert_same(model, source, but=("head.", "head_norm."))
    assert torch.equal(model.head.weight, resnet(seed=2).head.weight)


def test_weights_without_a_head_or_batch_counters_fit(tmp_path: Path) -> None:
    source = resnet(seed=1)
    weights = published(source, "fc.")
    kept = {n: v for n, v in weights.items() if not n.startswith("fc.") and not n.endswith("num_batches_tracked")}
    torch.save(kept, tmp_path / "weights.pth")
    assert_same(resnet(pretrained=str(tmp_path)), source, but=("head.",))


def test_missing_unexpected_and_misshapen_weights_are_listed(tmp_path: Path) -> None:
    weights = published(resnet(), "fc.")
    del weights["layer1.0.conv1.weight"]
    weights["extra.weight"] = torch.zeros(1)
    weights["conv1.weight"] = torch.zeros(2, 3, 7, 7)
    torch.save(weights, tmp_path / "weights.pth")
    with raises(
        UsageError, "pretrained-unfit", missing=["layer1.0.conv1.weight"], unexpected=["extra.weight"]
    ) as caught:
        resnet(pretrained=str(tmp_path))
    assert "conv1.weight is (2, 3, 7, 7), the model's is (2, 3, 3, 3)" in str(caught.value)


def test_a_long_list_of_wrong_names_is_cut(tmp_path: Path) -> None:
    torch.save({"unrelated": torch.zeros(1)}, tmp_path / "weights.pth")
    with raises(UsageError, "pretrained-unfit", unexpected=["unrelated"]) as caught:
        resnet(pretrained=str(tmp_path))
    assert len(caught.value.fields["missing"]) == 100
    assert "and 92 more" in str(caught.value)


def test_a_file_that_holds_no_weights_is_refused(tmp_path: Path) -> None:
    (tmp_path / "broken.safetensors").write_bytes(b"nothing")
    (tmp_path / "broken.pth").write_bytes(b"nothing")
    torch.save([torch.zeros(1)], tmp_path / "list.pth")
    for name in ("broken.safetensors", "broken.pth"):
        with raises(UsageError, "file-unreadable", path=str(tmp_path / name)):
            resnet(pretrained=str(tmp_path / name))
    with raises(UsageError, "file-unreadable", path=str(tmp_path / "list.pth")):
        resnet(pretrained=str(tmp_path / "list.pth"))
    with raises(UsageError, "pretrained-unfit", found=("broken.pth", "broken.safetensors", "list.pth")):
        resnet(pretrained=str(tmp_path))


def test_a_source_that_does_not_exist_says_what_may_be_given(tmp_path: Path) -> None:
    for source in (str(tmp_path / "no" / "such"), "weights.pth", "resnet18"):
        with raises(UsageError, "file-missing", source=source):
            resnet(pretrained=source)


def test_a_hub_name_is_downloaded_and_a_failure_names_both_ways(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = pytest.importorskip("huggingface_hub")
    source = resnet(seed=1)
    save_file(published(source, "fc."), tmp_path / "model.safetensors")

    def fetch(name: str, file: str) -> str:
        if name != "someone/resnet":
            raise OSError("no network")
        return str(tmp_path / file)

    monkeypatch.setattr(hub, "hf_hub_download", fetch)
    assert_same(resnet(pretrained="someone/resnet"), source)
    with raises(UsageError, "source-unavailable", source="someone/other"):
        resnet(pretrained="someone/other")
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with raises(UsageError, "package-missing", package="huggingface_hub") as caught:
        resnet(pretrained="someone/resnet")
    assert "fedatlas[hub]" in str(caught.value)


class Harmful:
    """Runs a command when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self.mark}",)


@pytest.mark.attack("a data file means harm")
@pytest.mark.parametrize(
    "content", [b"root:x:0:0\n" * 9, b"", b"\x80\x02R.", None], ids=["text", "empty", "broken", "code"]
)
def test_weights_that_are_something_else_run_no_code_and_are_one_error(content: bytes | None, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    mark, file = tmp_path / "mark", tmp_path / "model" / "pytorch_model.bin"
    file.parent.mkdir()
    file.write_bytes(pickle.dumps({"x": Harmful(mark)}, protocol=2) if content is None else content)
    with raises(UsageError, "file-unreadable") as caught:
        resnet(pretrained=str(file))
    assert "weights_only" not in str(caught.value)
    form = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 8}
    (file.parent / "config.json").write_text(json.dumps({"model_type": "vit", "image_size": 32, **form}))
    with raises(UsageError, "source-unavailable"):
        build_model(f"hf:{file.parent}", num_classes=2, input_shape=(3, 32, 32))
    assert not mark.exists()


@pytest.mark.attack("a data file means harm")
def test_code_that_comes_with_a_model_does_not_run(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    (tmp_path / "own.py").write_text(f"open({str(tmp_path / 'mark')!r}, 'w')\nclass Own:\n    pass\n")
    own = {"AutoConfig": "own.Own", "AutoModel": "own.Own"}
    for text in (json.dumps({"model_type": "own", "auto_map": own}), "[" * 100_000):
        (tmp_path / "config.json").write_text(text)
        with raises(UsageError, "source-unavailable"):
            build_model(f"hf:{tmp_path}", num_classes=2, input_shape=(3, 32, 32))
    assert not (tmp_path / "mark").exists()


@pytest.mark.attack("a data file means harm")
@pytest.mark.parametrize("name", ["..", "../..", "/etc", "file:///etc/passwd", "a\0b", "-x", "a/b/c", "x" * 5000])
def test_a_name_that_leads_elsewhere_is_no_model(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("transformers")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with raises(UsageError, "source-unavailable"):
        build_model(f"hf:{name}", num_classes=2, input_shape=(3, 32, 32))
