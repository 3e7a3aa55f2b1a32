"""Figure 4: accuracy of new clients against their number of training images, FedPCE and FedBN, CIFAR-10."""

from collections.abc import Mapping

from papers.fedpce.pictures import few_picture
from papers.fedpce.setting import STEMS, options_of, said, variant
from papers.options import Options, script
from papers.tables import Numbers, measure

METHODS = ("FedPCE", "FedBN")


def few_table(curves: Mapping[str, list[Numbers]], setting: str) -> str:
    """Return the curves as a Markdown table, and where FedBN overtakes."""
    first = next(iter(curves.values()))
    lines = ["### Figure 4, CIFAR-10", "", f"{setting} Accuracy after the last step.", ""]
    lines += [f"| images | {' | '.join(curves)} |", "|---" * (len(curves) + 1) + "|"]
    for place, point in enumerate(first):
        values = (f"{100 * points[place]['accuracy']:.1f}" for points in curves.values())
        lines.append(f"| {point['images']} | {' | '.join(values)} |")
    if set(METHODS) <= curves.keys():
        pairs = zip(curves["FedPCE"], curves["FedBN"], strict=True)
        ahead = [few["images"] for few, many in pairs if few["accuracy"] < many["accuracy"]]
        crossing = f"FedBN is ahead at {', '.join(map(str, ahead))} images" if ahead else "FedPCE is ahead throughout"
        lines += ["", f"{crossing}. In the paper FedBN is from about 800 on, and FedPCE is flat from about 100 on."]
    return "\n".join(lines) + "\n"


def _mark(options: Options) -> str:
    return STEMS[options.extra["stem"]].replace(" ", "-")


def report(results: Mapping[str, list[Numbers]], options: Options) -> str:
    """Draw the picture and return the table of what was measured."""
    found = {method: results.get(f"CIFAR-10 {method}", [])[:1] for method in METHODS}
    curves = {method: numbers[0]["few"] for method, numbers in found.items() if numbers and "few" in numbers[0]}
    if not curves:
        return ""
    few_picture(curves, options.out / f"figure-4{_mark(options)}.png", options)
    text = few_table(curves, said(options))
    (options.out / f"figure-4{_mark(options)}.md").write_text(text)
    return text


@script
def main() -> None:
    """Measure what is missing, and draw."""
    options = options_of(__doc__ or "")
    print(report(measure([variant("CIFAR-10", method, options) for method in METHODS], options), options))


if __name__ == "__main__":
    main()
