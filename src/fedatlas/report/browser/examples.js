// Some examples of a client: pictures of several classes, or rows of its table in the columns that differ most.

import { make } from "./dom.js";
import { clip, plural } from "./format.js";

export function examplesPart(block, client) {
  if (block.pictures[client]) return pictures(block, block.pictures[client]);
  return block.rows[client] ? tableRows(block.rows[client]) : null;
}

function pictures(block, strip) {
  const names = strip.labels.map((label) => block.classes[label] ?? "");
  return make(
    "figure",
    { class: "pictures" },
    make("img", { src: strip.image, alt: `${plural(strip.count, "example")} of its images` }),
    names.length
      ? make(
          "figcaption",
          { style: { "grid-template-columns": `repeat(${strip.count}, 1fr)` } },
          names.map((name) => make("span", {}, clip(name, 9))),
        )
      : null,
  );
}

function tableRows(own) {
  const text = own.columns.length === 2 && own.columns[1] === "text" && !own.here.some(Boolean);
  const cell = (value) => (value === "" ? make("span", { class: "aside", title: "missing" }, "–") : value);
  const usual = (title, values) =>
    make(
      "tr",
      {},
      make("th", { scope: "row" }, title),
      values.slice(1).map((value) => make("td", {}, value)),
    );
  const about = text
    ? "Some of its texts"
    : `Some of its rows${own.columns.length > 2 ? ", in the columns that differ most from the others" : ""}`;
  return make(
    "div",
    { class: "scroll examples", tabindex: 0, role: "region", "aria-label": "Some of its examples" },
    make(
      "table",
      { class: text ? "words" : null },
      make("caption", {}, about),
      make(
        "thead",
        {},
        make(
          "tr",
          {},
          own.columns.map((name) => make("th", { scope: "col", title: name }, clip(name, 12))),
        ),
      ),
      make(
        "tbody",
        {},
        own.rows.map((row) =>
          make(
            "tr",
            {},
            row.map((value, i) => (i ? make("td", {}, cell(value)) : make("th", { scope: "row" }, clip(value, 14)))),
          ),
        ),
      ),
      own.here.some(Boolean) ? make("tfoot", {}, usual("usual here", own.here), usual("elsewhere", own.others)) : null,
    ),
  );
}
