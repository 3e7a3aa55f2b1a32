"""What the papers' pictures share: an empty one, and one that is kept, marked where it is of a small version."""

from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from fedatlas.report import save_picture
from papers.options import Options

QUICK = "--quick: the embedded digits, not the paper's data"


def blank(width: float, height: float) -> Figure:
    """Return an empty picture of a size in inches."""
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def keep(figure: Figure, path: Path, options: Options) -> None:
    """Save a picture, with a line below it where ``--quick`` made it, and say where it is."""
    if options.quick:
        figure.supxlabel(QUICK, fontsize=8, color="gray")
    save_picture(figure, path)
    print(f"figure: {path}")
