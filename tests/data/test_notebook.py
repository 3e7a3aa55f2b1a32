"""A real notebook with a real kernel: what its cells show."""

from pathlib import Path

import pytest

import fedatlas

nbformat = pytest.importorskip("nbformat", reason="needs nbformat, nbclient and ipykernel")
nbclient = pytest.importorskip("nbclient", reason="needs nbformat, nbclient and ipykernel")
pytest.importorskip("ipykernel", reason="needs nbformat, nbclient and ipykernel")

CELLS = (
    "import fedatlas\n"
    "from fedatlas.data import NaturalId\n"
    'federation = fedatlas.federate(fedatlas.load_dataset("heart"), NaturalId(min_samples=1))\n'
    "federation",
    'fedatlas.make_atlas(federation, source="feature-average")',
    "fedatlas.check(federation)",
    'fedatlas.train(federation, fedatlas.algorithms.fedavg(), model="mlp", rounds=2, workers=1)',
)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_objects_of_each_kind_show_themselves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in CELLS])
    monkeypatch.setenv("JUPYTER_PLATFORM_DIRS", "1")
    monkeypatch.setenv("PYTHONPATH", str(Path(fedatlas.__file__).parents[1]))  # the kernel's package is this one
    nbclient.NotebookClient(notebook, timeout=120, resources={"metadata": {"path": str(tmp_path)}}).execute()
    shown = [
        next(output["data"]["text/html"] for output in cell.outputs if "text/html" in output.get("data", {}))
        for cell in notebook.cells
    ]
    for html, caption in zip(shown, ("Federation of heart", "Atlas", "Check of heart", "Run of fedavg"), strict=True):
        assert f"<caption>{caption}</caption>" in html
        assert len(html) < 20_000
    assert "<svg" in shown[1]
    assert "<svg" in shown[3]
    assert "switzerland" in shown[2]
