// Small charts in SVG: strips of dots, curves, scatters, marks of legends.

import { kindColor, kindShape } from "./color.js";
import { draw, make } from "./dom.js";
import { bare, metric } from "./metric.js";
import { niceTicks } from "./stats.js";

export function shapePath(shape, x, y, r) {
  if (shape === "square") return `M${x - r * 0.88} ${y - r * 0.88}h${r * 1.76}v${r * 1.76}h${-r * 1.76}z`;
  if (shape === "triangle") return `M${x} ${y - r * 1.15}L${x + r * 1.1} ${y + r * 0.8}H${x - r * 1.1}z`;
  if (shape === "diamond") return `M${x} ${y - r * 1.2}L${x + r * 1.2} ${y}L${x} ${y + r * 1.2}L${x - r * 1.2} ${y}z`;
  return `M${x - r} ${y}a${r} ${r} 0 1 0 ${2 * r} 0a${r} ${r} 0 1 0 ${-2 * r} 0z`;
}

export function swatch(color, shape = "circle") {
  return draw(
    "svg",
    { class: "swatch", viewBox: "0 0 12 12", width: 12, height: 12, "aria-hidden": "true" },
    draw("path", { d: shapePath(shape, 6, 6, 4.4), fill: color }),
  );
}

export function groupSwatch(index) {
  return swatch(kindColor(index), kindShape(index));
}

export function dotStrip(values, about, { color, mark = null, height = 26 }) {
  // Each value is a dot between the metric's bounds; a thin line is the mean.
  const width = 260;
  const [low, high] = metric.bounds;
  const along = (value) => 6 + ((value - low) / (high - low || 1)) * (width - 12);
  const centre = values.length ? values.reduce((a, b) => a + b, 0) / values.length : null;
  return draw(
    "svg",
    { class: "dots", viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": about, preserveAspectRatio: "none" },
    draw("line", { x1: 6, x2: width - 6, y1: height / 2, y2: height / 2, class: "axis" }),
    values.map((value) =>
      draw("circle", { cx: along(value).toFixed(1), cy: height / 2, r: 3.4, fill: color, "fill-opacity": 0.55 }),
    ),
    centre === null
      ? null
      : draw("line", { x1: along(centre), x2: along(centre), y1: 3, y2: height - 3, class: "mean", stroke: color }),
    mark === null
      ? null
      : draw("line", { x1: along(mark), x2: along(mark), y1: 3, y2: height - 3, class: "reference" }),
  );
}

export function intervalBar(low, value, high, about, { least = metric.bounds[0], most = metric.bounds[1], color, zero = null }) {
  const width = 120;
  const along = (share) => 4 + ((Math.max(least, Math.min(most, share)) - least) / (most - least || 1)) * (width - 8);
  return draw(
    "svg",
    { class: "interval", viewBox: `0 0 ${width} 14`, role: "img", "aria-label": about },
    zero === null ? null : draw("line", { x1: along(zero), x2: along(zero), y1: 0, y2: 14, class: "axis" }),
    Number.isNaN(low)
      ? null
      : draw("line", {
          x1: along(low),
          x2: along(high),
          y1: 7,
          y2: 7,
          stroke: color,
          "stroke-width": 3,
          "stroke-opacity": 0.4,
        }),
    draw("circle", { cx: along(value), cy: 7, r: 4, fill: color }),
  );
}

export function curves(tracks, about, { chosen = null, at = null, width = 720, height = 300 }) {
  // Lines over rounds; a track is {label, color, rounds, mean, low, high, dashed}.
  const rounds = tracks.flatMap((track) => track.rounds);
  const [first, last] = [Math.min(...rounds), Math.max(...rounds)];
  const values = tracks.flatMap((track) => [...track.low, ...track.high]).filter((value) => !Number.isNaN(value));
  const [low, high] = [Math.min(...values), Math.max(...values)];
  const pad = Math.max((high - low) * 0.08, metric.percent ? 0.01 : Math.abs(high) * 0.01 || 1e-9);
  const x = (round) => 44 + ((round - first) / Math.max(1, last - first)) * (width - 60);
  const y = (value) => 12 + (1 - (value - low + pad) / (high - low + 2 * pad)) * (height - 44);
  const ends = [low - pad, high + pad];
  const ticks = niceTicks(...(metric.percent ? [Math.max(0, ends[0]), Math.min(1, ends[1])] : ends), 5);
  const line = (track, row) =>
    track.rounds.map((round, i) => `${i ? "L" : "M"}${x(round).toFixed(1)} ${y(row[i]).toFixed(1)}`).join("");
  const band = (track) =>
    line(track, track.high) +
    track.rounds
      .map((_, i) => track.rounds.length - 1 - i)
      .map((i) => `L${x(track.rounds[i]).toFixed(1)} ${y(track.low[i]).toFixed(1)}`)
      .join("") +
    "z";
  return draw(
    "svg",
    { class: "curves", viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": about },
    ticks.map((tick) => [
      draw("line", { x1: 44, x2: width - 16, y1: y(tick), y2: y(tick), class: "grid" }),
      draw("text", { x: 38, y: y(tick) + 4, "text-anchor": "end" }, bare(tick)),
    ]),
    niceTicks(first, last, 6)
      .filter((tick) => Number.isInteger(tick))
      .map((tick) => draw("text", { x: x(tick), y: height - 12, "text-anchor": "middle" }, String(tick))),
    tracks.map((track) =>
      track.several ? draw("path", { d: band(track), fill: track.color, "fill-opacity": 0.13 }) : null,
    ),
    tracks.map((track) =>
      draw("path", {
        d: line(track, track.mean),
        fill: "none",
        stroke: track.color,
        "stroke-width": chosen === null || chosen === track.label ? 2.4 : 1.2,
        "stroke-opacity": chosen === null || chosen === track.label ? 1 : 0.5,
        "stroke-dasharray": track.dashed ? "5 4" : null,
        "stroke-linejoin": "round",
      }),
    ),
    at === null ? null : draw("line", { x1: x(at), x2: x(at), y1: 8, y2: height - 30, class: "reference" }),
  );
}

export function scatter(points, about, { xTitle, logarithmic = false, width = 300, height = 190, choose }) {
  const turn = (value) => (logarithmic ? Math.log10(Math.max(value, 1)) : value);
  const xs = points.map((point) => turn(point.x));
  const [left, right] = [Math.min(...xs), Math.max(...xs)];
  const x = (value) => 36 + ((turn(value) - left) / (right - left || 1)) * (width - 48);
  const [low, high] = metric.bounds;
  const y = (value) => 8 + (1 - (value - low) / (high - low || 1)) * (height - 44);
  const ends = logarithmic ? [10 ** left, 10 ** right] : [left, right];
  return make(
    "figure",
    { class: "scatter" },
    draw(
      "svg",
      { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": about },
      niceTicks(low, high, 2).map((tick) => [
        draw("line", { x1: 36, x2: width - 12, y1: y(tick), y2: y(tick), class: "grid" }),
        draw("text", { x: 30, y: y(tick) + 4, "text-anchor": "end" }, bare(tick)),
      ]),
      points.map((point) =>
        draw("circle", {
          cx: x(point.x).toFixed(1),
          cy: y(point.y).toFixed(1),
          r: points.length > 300 ? 2 : 3.6,
          fill: point.color,
          "fill-opacity": 0.7,
          on: { click: () => choose(point.client) },
        }),
      ),
      draw("text", { x: 36, y: height - 20 }, shortNumber(ends[0])),
      draw("text", { x: width - 12, y: height - 20, "text-anchor": "end" }, shortNumber(ends[1])),
      draw("text", { x: 36 + (width - 48) / 2, y: height - 4, "text-anchor": "middle" }, xTitle),
    ),
  );
}

function shortNumber(value) {
  if (Math.abs(value) >= 1000) return `${(value / 1000).toFixed(1)}k`;
  return Number.isInteger(value) || Math.abs(value) >= 10 ? String(Math.round(value)) : value.toFixed(2);
}
