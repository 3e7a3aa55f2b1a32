"""What clients of a run disclose, from the declarations of the algorithm's parts."""

from __future__ import annotations

from fedatlas.algorithms.registry import ALGORITHMS
from fedatlas.errors import FedatlasError
from fedatlas.parts.disclosure import words
from fedatlas.runs.run import Run

ALWAYS = "the number of its examples, and the change of the model in each round it took part in"


def disclosed_by(run: Run) -> list[str]:
    """Return what left a client that took part, in words; a line says so where it is not known."""
    said = [ALWAYS]
    for name in run.name.split("+"):
        if name not in ALGORITHMS.entries:
            said.append(f"what the parts of {name} declare, which cannot be read from the run")
            continue
        if "atlas" in ALGORITHMS.entries[name].facts.get("needs", ()):
            said.append("what its vector in the atlas was made of")
            continue
        try:
            said += words(ALGORITHMS[name]().disclosures())
        except (FedatlasError, TypeError):  # a recipe that needs more than its name
            said.append(f"what the parts of {name} declare")
    return list(dict.fromkeys(said))
