// Over time: the main metric and the clients' weights by round, and a slider that sets all of them back to a round.

import { curves, dotStack } from "./chart.js";
import { kindColor } from "./color.js";
import { frameValue, weightAt, weightIn } from "./data.js";
import { make, note, renew } from "./dom.js";
import { clip, plural, sharePercent } from "./format.js";
import { bare, metric, metricTitle, told, unit, worstOf } from "./metric.js";
import { groupOf, groupTitle } from "./plane.js";
import { change, choose, listen, state } from "./state.js";
import { known, mean } from "./stats.js";

const MOST_LINES = 8;
const MOST_SELECTED = 5;
const STEP = 700;
const PAPER = 345;
let block = null;
let words = null;
let slide = null;
let playing = null;

export function timePart(data) {
  block = data;
  if (!block.algorithms.some((own) => own.curve.train && own.curve.train.rounds.length > 1)) return null;
  const panels = make("div", { class: "panels" });
  const slider = make("div", { class: "slider" });
  listen(["algorithm", "frame", "theme", "chosen", "selected", "grouping"], () => fillPanels(panels));
  listen(["algorithm", "frame", "chosen"], () => tellFrame());
  listen(["algorithm"], () => {
    change({ frame: null });
    fillSlider(slider);
  });
  // Drawn to the width that they have, once they have one.
  let wide = null;
  new ResizeObserver(() => {
    if (panels.clientWidth === wide) return;
    wide = panels.clientWidth;
    fillPanels(panels);
  }).observe(panels);
  fillPanels(panels);
  fillSlider(slider);
  return [slider, panels, note(aboutLines())];
}

function aboutLines() {
  const several = block.algorithms.some((own) => own.seeds > 1) ? " A band spans the runs of several seeds." : "";
  const never = block.clients.held_out.some(Boolean) ? " Dashed: clients that never trained." : "";
  return `Measured on each client's test part.${never}${several} The chosen client has the colour of the text; other selected clients are dotted. A click on a dot chooses its client.`;
}

function fillPanels(node) {
  const own = block.algorithms[state.algorithm];
  const at = own.frames ? own.frames.rounds[state.frame ?? own.frames.rounds.length - 1] : null;
  const last = Math.max(...block.algorithms.map((one) => one.rounds));
  const [width, height] = panelSize(node);
  const size = { at, width, height, span: [0, last] };
  const under = clip(own.label, 28);
  renew(
    node,
    panel(`${metricTitle()} by algorithm`, "mean over test examples", algorithmTracks(), {
      ...size,
      chosen: block.algorithms.length > 3 ? own.label : null,
    }),
    own.frames ? panel(`${metricTitle()} by group`, `mean over clients, ${under}`, groupTracks(own), size) : null,
    own.weights
      ? panel("Weight in the mean", `by group and client, ${under}`, weightTracks(own), { ...size, shares: true })
      : null,
    own.frames ? clientsNow(own, at, width, height) : null,
  );
}

function panelSize(node) {
  // Two panels side by side, on paper too; one above the other on a phone.
  if (document.documentElement.dataset.printing) return [PAPER, 200];
  const wide = node.clientWidth || Math.min(innerWidth, 1180);
  return [wide < 700 ? Math.max(300, wide) : (wide - 28) / 2, 250];
}

function panel(title, small, tracks, options) {
  if (!tracks.length) return null;
  const about = `${title}, by round: ${tracks.map((track) => track.label).join(", ")}`;
  return make(
    "figure",
    { class: "curve" },
    make("h3", {}, title, make("small", {}, ` ${options.shares || metric.percent ? "in %, " : ""}${small}`)),
    curves(tracks, about, { ...options, form: options.shares ? (value) => String(Math.round(100 * value)) : bare }),
  );
}

function algorithmTracks() {
  return block.algorithms.flatMap((own, i) =>
    ["train", "held_out"]
      .filter((part) => own.curve[part])
      .map((part) => ({
        ...own.curve[part],
        label: part === "train" ? own.label : `${own.label}, held out`,
        color: kindColor(i),
        dashed: part === "held_out" ? "5 4" : null,
        several: own.seeds > 1,
      })),
  );
}

function line(label, color, rounds, values, style) {
  // What is known of a line; nothing where that is nothing.
  const kept = rounds.filter((_, i) => !Number.isNaN(values[i]));
  const row = known(values);
  return row.length ? [{ label, color, rounds: kept, mean: row, low: row, high: row, ...style }] : [];
}

function members() {
  const found = new Map();
  for (let client = 0; client < block.count; client += 1) {
    const group = groupOf(client);
    if (!found.has(group)) found.set(group, []);
    found.get(group).push(client);
  }
  // A group of one is that client, which may have a line already.
  const alone = (clients) => clients.length === 1 && (clients[0] === state.chosen || state.selected.has(clients[0]));
  return [...found]
    .filter(([, clients]) => !alone(clients))
    .sort((a, b) => b[1].length - a[1].length || a[0] - b[0])
    .slice(0, MOST_LINES);
}

function people() {
  // The chosen client, and some of the selected ones.
  const selected = [...state.selected].filter((client) => client !== state.chosen).slice(0, MOST_SELECTED);
  const dotted = selected.map((client) => [client, kindColor(groupOf(client)), "1.5 4"]);
  return state.chosen === null ? dotted : [...dotted, [state.chosen, "currentColor", null]];
}

function groupTracks(own) {
  const rounds = own.frames.rounds;
  const value = (frame, client) => frameValue(own, frame, client, block.count);
  const groups = members().flatMap(([group, clients]) => {
    const means = rounds.map((_, frame) => mean(known(clients.map((client) => value(frame, client)))));
    return line(groupTitle(group), kindColor(group), rounds, means, {});
  });
  const clients = people().flatMap(([client, color, dashed]) => {
    const values = rounds.map((_, frame) => value(frame, client));
    return line(block.clients.name[client], color, rounds, values, { dashed });
  });
  return [...groups, ...clients];
}

function weightTracks(own) {
  const rounds = own.weights.rounds;
  const value = (row, client) => weightAt(own, row, client, block.count);
  const found = members();
  const groups = found.flatMap(([group, clients]) => {
    const sums = rounds.map((_, row) => {
      const weights = known(clients.map((client) => value(row, client)));
      return weights.length ? weights.reduce((sum, weight) => sum + weight, 0) : NaN;
    });
    return found.length > 1 || people().length ? line(groupTitle(group), kindColor(group), rounds, sums, {}) : [];
  });
  const clients = people().flatMap(([client, color, dashed]) => {
    const weights = rounds.map((_, row) => value(row, client));
    return line(block.clients.name[client], color, rounds, weights, { dashed, dots: weights.some(Number.isNaN) });
  });
  return [...groups, ...clients];
}

function valueAt(own, frame, client) {
  // The last round of one run is known exactly; frames are rounded to 0.4 points.
  const exact = frame === own.frames.rounds.length - 1 && own.alike === 1;
  return exact ? own.value[client] : frameValue(own, frame, client, block.count);
}

function clientsNow(own, at, width, height) {
  const frame = state.frame ?? own.frames.rounds.length - 1;
  const points = Array.from({ length: block.count }, (_, client) => ({
    client,
    value: valueAt(own, frame, client),
    name: block.clients.name[client],
    color: kindColor(groupOf(client)),
    marked: client === state.chosen,
  })).filter((point) => !Number.isNaN(point.value));
  return make(
    "figure",
    { class: "curve" },
    make("h3", {}, `Each client in round ${at}`, make("small", {}, ` ${metric.title}${unit() && " in %"}`)),
    dotStack(points, `${metricTitle()} of ${plural(points.length, "client")} in round ${at}`, {
      width,
      height,
      choose,
    }),
  );
}

function fillSlider(node) {
  const own = block.algorithms[state.algorithm];
  stop();
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
      input: (event) => {
        stop();
        goTo(Number(event.target.value), last);
      },
    },
  });
  words = make("output", { id: "round-words", for: "round" });
  const play = make(
    "button",
    { id: "play", type: "button", on: { click: () => (playing ? stop() : start(last)) } },
    "Play",
  );
  renew(node, make("label", {}, make("span", {}, "Round"), slide), play, words);
  tellFrame();
}

function goTo(frame, last) {
  change({ frame: frame >= last ? null : frame, colour: "accuracy" });
}

function start(last) {
  let frame = state.frame === null ? 0 : state.frame + 1;
  goTo(frame, last);
  document.getElementById("play").textContent = "Stop";
  playing = setInterval(() => {
    frame += 1;
    goTo(frame, last);
    if (frame >= last) stop();
  }, STEP);
}

function stop() {
  if (!playing) return;
  clearInterval(playing);
  playing = null;
  document.getElementById("play").textContent = "Play";
}

function tellFrame() {
  const own = block.algorithms[state.algorithm];
  if (!words || !own.frames) return;
  const frame = state.frame ?? own.frames.rounds.length - 1;
  const round = own.frames.rounds[frame];
  const all = known(Array.from({ length: block.count }, (_, client) => valueAt(own, frame, client)));
  const said = [`round ${round}: mean ${metric.title} over clients ${told(mean(all))}, worst ${told(worstOf(all))}`];
  if (state.chosen !== null) {
    const weight = weightIn(own, round, state.chosen, block.count);
    const counted = Number.isNaN(weight) ? "" : `, weight ${sharePercent(weight)}`;
    said.push(`${clip(block.clients.name[state.chosen], 28)} ${told(valueAt(own, frame, state.chosen))}${counted}`);
  }
  words.textContent = said.join("; ");
  slide.value = frame;
  slide.setAttribute("aria-valuetext", said[0]);
}
