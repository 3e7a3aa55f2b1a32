// Over time: the main metric by round, and a slider that sets the map and the card back to a round.

import { curves, swatch } from "./chart.js";
import { kindColor } from "./color.js";
import { frameValue, frameWeight } from "./data.js";
import { make, note, renew } from "./dom.js";
import { clip } from "./format.js";
import { metric, metricTitle, told, worstOf } from "./metric.js";
import { change, listen, state } from "./state.js";
import { known, mean } from "./stats.js";

let block = null;
let words = null;
let slide = null;

export function timePart(data) {
  block = data;
  if (!block.algorithms.some((own) => own.curve.train && own.curve.train.rounds.length > 1)) return null;
  const picture = make("div", { class: "curve" });
  const slider = make("div", { class: "slider" });
  listen(["algorithm", "frame", "theme", "chosen"], () => fillCurves(picture));
  listen(["algorithm", "frame", "chosen"], () => tellFrame());
  listen(["algorithm"], () => {
    change({ frame: null });
    fillSlider(slider);
  });
  fillCurves(picture);
  fillSlider(slider);
  return [
    picture,
    slider,
    note(
      "Measured on each client's test part. Dashed: clients that never trained. A band spans the runs of several seeds.",
    ),
  ];
}

function tracksOf() {
  return block.algorithms.flatMap((own, i) =>
    ["train", "held_out"]
      .filter((part) => own.curve[part])
      .map((part) => ({
        ...own.curve[part],
        label: own.label,
        color: kindColor(i),
        dashed: part === "held_out",
        several: own.seeds > 1,
      })),
  );
}

function clientTrack() {
  const own = block.algorithms[state.algorithm];
  if (state.chosen === null || !own.frames) return [];
  const values = own.frames.rounds.map((_, frame) => frameValue(own, frame, state.chosen, block.count));
  const rounds = own.frames.rounds.filter((_, frame) => !Number.isNaN(values[frame]));
  if (rounds.length < 2) return [];
  const line = known(values);
  return [
    {
      label: own.label,
      color: "currentColor",
      rounds,
      mean: line,
      low: line,
      high: line,
      dashed: false,
      several: false,
    },
  ];
}

function fillCurves(node) {
  const own = block.algorithms[state.algorithm];
  const tracks = [...tracksOf(), ...clientTrack()];
  const at = state.frame === null || !own.frames ? null : own.frames.rounds[state.frame];
  const names = block.algorithms.map((one, i) => make("span", {}, swatch(kindColor(i)), clip(one.label, 28)));
  if (state.chosen !== null)
    names.push(make("span", {}, swatch("currentColor"), clip(block.clients.name[state.chosen], 28)));
  renew(
    node,
    curves(tracks, `${metricTitle()} by round of ${block.algorithms.map((one) => one.label).join(", ")}`, {
      chosen: block.algorithms.length > 3 ? own.label : null,
      at,
      width: window.innerWidth < 600 ? 400 : 720,
    }),
    make("div", { class: "legend" }, names),
  );
}

function fillSlider(node) {
  const own = block.algorithms[state.algorithm];
  if (!own.frames) {
    renew(node);
    return;
  }
  const last = own.frames.rounds.length - 1;
  slide = make("input", {
    id: "round",
    type: "range",
    min: 0,
    max: last,
    step: 1,
    "aria-label": "Round",
    on: {
      input: (event) =>
        change({ frame: Number(event.target.value) === last ? null : Number(event.target.value), colour: "accuracy" }),
    },
  });
  words = make("output", { id: "round-words", for: "round" });
  renew(node, make("label", {}, make("span", {}, "Round"), slide), words);
  tellFrame();
}

function tellFrame() {
  const own = block.algorithms[state.algorithm];
  if (!words || !own.frames) return;
  const frame = state.frame ?? own.frames.rounds.length - 1;
  const all = known(Array.from({ length: block.count }, (_, client) => frameValue(own, frame, client, block.count)));
  const said = [
    `round ${own.frames.rounds[frame]}: mean ${metric.title} over clients ${told(mean(all))}, worst ${told(worstOf(all))}`,
  ];
  if (state.chosen !== null) {
    const weight = frameWeight(own, frame, state.chosen, block.count);
    said.push(
      `${clip(block.clients.name[state.chosen], 28)} ${told(frameValue(own, frame, state.chosen, block.count))}${Number.isNaN(weight) ? ", did not train" : `, weight ${weight.toFixed(3)}`}`,
    );
  }
  words.textContent = said.join("; ");
  slide.value = frame;
  slide.setAttribute("aria-valuetext", said[0]);
}
