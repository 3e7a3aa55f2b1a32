// How it was made: settings that differ, settings that all share, where runs are stored, what the page leaves out.

import { make, note } from "./dom.js";
import { clip } from "./format.js";
import { metric, told } from "./metric.js";
import { commandLine } from "./why.js";

export function madePart(block) {
  const parts = [];
  if (block.partition) parts.push(note(`How the clients came about: ${block.partition}.`));
  if (block.settings) parts.push(differing(block.settings), shared(block.settings), again(block.settings));
  parts.push(
    note(block.noise),
    block.algorithms.filter((own) => own.privacy).map((own) => note(`${own.label}: ${own.privacy}`)),
  );
  if (block.shared) {
    parts.push(
      note(
        "This is a copy to share: names, pictures, file paths and groups of fewer than five clients were left out. It still shows each client's size, label shares, similarities and results.",
      ),
    );
  }
  return parts;
}

function differing(settings) {
  if (settings.labels.length < 2) return null;
  const { differ, details } = settings;
  if (!differ.length && !details.length) return note("The algorithms have the same settings.");
  return [
    make("h3", {}, "Settings that differ"),
    differ.length ? settingsTable("differ", settings.labels, differ) : note("Only who shares a model, or the atlas."),
    details.length
      ? make(
          "details",
          {},
          make("summary", {}, "Groups and atlas that differ"),
          settingsTable("differ-details", settings.labels, details),
        )
      : null,
  ];
}

function settingsTable(id, labels, rows) {
  return make(
    "div",
    { class: "scroll", tabindex: 0, role: "region", "aria-label": "Settings that differ" },
    make(
      "table",
      { id, class: "words" },
      make(
        "thead",
        {},
        make(
          "tr",
          {},
          make("th", { scope: "col" }, "Setting"),
          labels.map((label) => make("th", { scope: "col" }, clip(label, 40))),
        ),
      ),
      make(
        "tbody",
        {},
        rows.map((row) =>
          make(
            "tr",
            {},
            make("th", { scope: "row" }, row.key),
            row.values.map((value) => make("td", {}, value || "–")),
          ),
        ),
      ),
    ),
  );
}

function shared(settings) {
  return make(
    "details",
    {},
    make("summary", {}, settings.labels.length > 1 ? "Settings that all share" : "Settings"),
    make(
      "dl",
      { class: "settings" },
      settings.shared.map((row) => make("div", {}, make("dt", {}, row.key), make("dd", {}, row.value))),
    ),
  );
}

function again(settings) {
  return make(
    "details",
    {},
    make("summary", {}, "Where runs are stored, and how to make each again"),
    settings.runs.map((run) =>
      run.command
        ? commandLine(run.command, `${run.label}, seed ${run.seeds}, in ${run.folder}`)
        : note(
            `${run.label} in ${run.folder}: made from Python; the settings above are the arguments of fedatlas.train.`,
          ),
    ),
  );
}

export function newcomersPart(block) {
  const found = block.algorithms.flatMap((own) => own.newcomers.map((one) => ({ ...one, label: own.label })));
  if (!found.length) return null;
  const heads = ["Client", "Algorithm", "Before", "After", "Kept", "Numbers tuned", "Examples", "Steps", "Start"];
  return [
    note(
      `After training, for each client by itself: ${metric.title} on its test part before and after tuning. Nothing was sent.`,
    ),
    make(
      "div",
      { class: "scroll", tabindex: 0, role: "region", "aria-label": "Clients that joined later" },
      make(
        "table",
        {},
        make(
          "thead",
          {},
          make(
            "tr",
            {},
            heads.map((title) => make("th", { scope: "col" }, title)),
          ),
        ),
        make(
          "tbody",
          {},
          found.map((one) =>
            make(
              "tr",
              {},
              make("th", { scope: "row" }, make("bdi", {}, clip(one.client, 40))),
              [
                one.label,
                told(one.before),
                told(one.after),
                one.why || one.kept || "–",
                one.num_tuned,
                one.num_examples,
                one.num_steps,
                one.origin,
              ].map((value) => make("td", {}, String(value))),
            ),
          ),
        ),
      ),
    ),
  ];
}
