// Small charts in SVG: strips of dots, curves, scatters, marks of legends.

import { kindColor, kindShape } from "./color.js";
import { draw, make } from "./dom.js";
import { clip } from "./format.js";
import { bare, metric, told, unit } from "./metric.js";
import { niceTicks } from "./stats.js";

const LEAST_SPAN = 0.1;

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

export function intervalBar(
  low,
  value,
  high,
  about,
  { least = metric.bounds[0], most = metric.bounds[1], color, zero = null },
) {
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

export function curves(tracks, about, options) {
  // Lines over rounds, each with its name at its end; a track is {label, color, rounds, mean, low, high, dashed, dots}.
  const { chosen = null, at = null, width = 720, height = 300, span, shares = false, form } = options;
  const named = width >= 420 ? 140 : 92;
  const [first, last] = span;
  const values = tracks.flatMap((track) => [...track.low, ...track.high]).filter((value) => !Number.isNaN(value));
  const low = shares ? 0 : Math.min(...values);
  const high = Math.max(...values);
  // At least ten points are shown, so that noise does not fill the picture.
  const least = metric.percent && !shares ? (LEAST_SPAN - (high - low)) / 2 : 0;
  const pad = Math.max((high - low) * 0.08, least, shares || metric.percent ? 0.01 : Math.abs(high) * 0.01 || 1e-9);
  const ends = [shares ? 0 : low - pad, high + pad];
  if (shares || metric.percent) [ends[0], ends[1]] = [Math.max(0, ends[0]), Math.min(1.005, ends[1])];
  const [left, right, top, bottom] = [40, width - named, 8, height - 34];
  const x = (round) => left + ((round - first) / Math.max(1, last - first)) * (right - left);
  const y = (value) => top + (1 - (value - ends[0]) / (ends[1] - ends[0] || 1)) * (bottom - top);
  const line = (track, row) =>
    track.rounds.map((round, i) => `${i ? "L" : "M"}${x(round).toFixed(1)} ${y(row[i]).toFixed(1)}`).join("");
  const back = (track) =>
    track.rounds
      .map((round, i) => `L${x(round).toFixed(1)} ${y(track.low[i]).toFixed(1)}`)
      .reverse()
      .join("");
  const strong = (track) => chosen === null || chosen === track.label;
  return draw(
    "svg",
    { class: "curves", viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": about },
    niceTicks(...ends, 4).map((tick) => [
      draw("line", { x1: left, x2: right, y1: y(tick), y2: y(tick), class: "grid" }),
      draw("text", { x: left - 6, y: y(tick) + 4, "text-anchor": "end" }, form(tick)),
    ]),
    niceTicks(first, last, width < 420 ? 4 : 6)
      .filter((tick) => Number.isInteger(tick))
      .map((tick) => draw("text", { x: x(tick), y: bottom + 16, "text-anchor": "middle" }, String(tick))),
    draw("text", { x: (left + right) / 2, y: height - 4, "text-anchor": "middle" }, "round"),
    at === null ? null : draw("line", { x1: x(at), x2: x(at), y1: top, y2: bottom, class: "reference" }),
    tracks.map((track) =>
      track.several
        ? draw("path", { d: `${line(track, track.high)}${back(track)}z`, fill: track.color, "fill-opacity": 0.13 })
        : null,
    ),
    tracks.map((track) => [
      draw("path", {
        d: line(track, track.mean),
        fill: "none",
        stroke: track.color,
        "stroke-width": track.dots ? 0.8 : strong(track) ? 2.2 : 1.2,
        "stroke-opacity": strong(track) ? 1 : 0.5,
        "stroke-dasharray": track.dashed || null,
        "stroke-linejoin": "round",
        "stroke-linecap": "round",
      }),
      track.rounds
        .map((round, i) => [round, track.mean[i]])
        .filter(([round]) => track.dots || track.rounds.length === 1 || round === at)
        .map(([round, value]) =>
          draw("circle", { cx: x(round), cy: y(value), r: round === at ? 4 : 2.2, fill: track.color }),
        ),
    ]),
    lineNames(tracks, y, right + 8, [top + 4, bottom], named - 10),
  );
}

function lineNames(tracks, y, left, [top, bottom], wide) {
  // Names at the ends of lines, moved apart where they would overlap.
  const gap = Math.min(14, (bottom - top) / Math.max(1, tracks.length - 1));
  const names = tracks.map((track) => ({ track, y: y(track.mean[track.mean.length - 1]) })).sort((a, b) => a.y - b.y);
  names.forEach((name, i) => {
    name.y = Math.max(name.y, i ? names[i - 1].y + gap : top);
  });
  for (let i = names.length - 1, most = bottom; i >= 0; i -= 1, most = names[i + 1].y - gap)
    names[i].y = Math.min(names[i].y, most);
  return names.map(({ track, y: at }) => [
    draw("circle", { cx: left + 4, cy: at, r: 4, fill: track.color }),
    draw(
      "text",
      { x: left + 13, y: at + 4 },
      draw("title", {}, track.label),
      clip(track.label, Math.floor((wide - 13) / 6.6)),
    ),
  ]);
}

export function dotStack(points, about, { width, height = 250, choose }) {
  // A dot for each client along the metric; equal ones are on top of each other, made smaller until all fit.
  const [low, high] = metric.bounds;
  const [left, right, bottom] = [14, width - 14, height - 34];
  const sorted = [...points].sort((a, b) => a.value - b.value);
  let [r, columns] = [8, null];
  for (; r > 1; r *= 0.85) {
    columns = new Map();
    for (const point of sorted) {
      const column = Math.round(((point.value - low) / (high - low || 1)) * ((right - left) / (2 * r)));
      if (!columns.has(column)) columns.set(column, []);
      columns.get(column).push(point);
    }
    if (Math.max(0, ...[...columns.values()].map((own) => own.length)) * 2 * r <= bottom - 10) break;
  }
  const x = (value) => left + ((value - low) / (high - low || 1)) * (right - left);
  return draw(
    "svg",
    { class: "curves stack", viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": about },
    draw("line", { x1: left, x2: right, y1: bottom + 1, y2: bottom + 1, class: "axis" }),
    niceTicks(low, high, 5).map((tick) =>
      draw("text", { x: x(tick), y: bottom + 17, "text-anchor": "middle" }, bare(tick)),
    ),
    draw("text", { x: (left + right) / 2, y: height - 4, "text-anchor": "middle" }, metric.title),
    [...columns.values()].map((own) =>
      own.map((point, i) =>
        draw(
          "circle",
          {
            cx: x(own.reduce((sum, one) => sum + one.value, 0) / own.length).toFixed(1),
            cy: (bottom - r - 2 * r * i).toFixed(1),
            r: (r * 0.9).toFixed(2),
            fill: point.color,
            class: point.marked ? "marked" : null,
            on: { click: () => choose(point.client) },
          },
          draw("title", {}, `${point.name}: ${told(point.value)}`),
        ),
      ),
    ),
  );
}

export function scatter(points, about, { xTitle, logarithmic = false, width = 300, height = 196, choose, name }) {
  const turn = (value) => (logarithmic ? Math.log10(Math.max(value, 1)) : value);
  const xs = points.map((point) => turn(point.x));
  const [left, right] = [Math.min(...xs), Math.max(...xs)];
  const x = (value) => 36 + ((turn(value) - left) / (right - left || 1)) * (width - 48);
  const [low, high] = metric.bounds;
  const y = (value) => 20 + (1 - (value - low) / (high - low || 1)) * (height - 56);
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
      draw("text", { x: 36, y: 10 }, `${metric.title}${unit() && " in %"}`),
      name ? pointNames(points, x, y, name, width) : null,
      points.map((point) =>
        draw(
          "circle",
          {
            cx: x(point.x).toFixed(1),
            cy: y(point.y).toFixed(1),
            r: points.length > 300 ? 2 : 3.6,
            fill: point.color,
            "fill-opacity": 0.7,
            on: { click: () => choose(point.client) },
          },
          draw("title", {}, `${point.name}: ${told(point.y)}`),
        ),
      ),
      draw("text", { x: 36, y: height - 20 }, shortNumber(ends[0])),
      draw("text", { x: width - 12, y: height - 20, "text-anchor": "end" }, shortNumber(ends[1])),
      draw("text", { x: 36 + (width - 48) / 2, y: height - 4, "text-anchor": "middle" }, xTitle),
    ),
  );
}

function pointNames(points, x, y, name, width) {
  // Names beside their dots, on the side that has room; one that would cover another is moved down.
  const taken = [];
  return [...points]
    .sort((a, b) => y(a.y) - y(b.y))
    .map((point) => {
      const text = name(point.client);
      const long = 6.4 * text.length;
      const toLeft = x(point.x) + 8 + long > width;
      const left = toLeft ? x(point.x) - 8 - long : x(point.x) + 8;
      let at = y(point.y);
      while (taken.some(([from, to, line]) => from < left + long && left < to && Math.abs(line - at) < 12)) at += 4;
      taken.push([left, left + long, at]);
      return draw("text", { x: toLeft ? x(point.x) - 8 : left, y: at + 4, "text-anchor": toLeft ? "end" : null }, text);
    });
}

function shortNumber(value) {
  if (Math.abs(value) >= 1000) return `${(value / 1000).toFixed(1)}k`;
  return Number.isInteger(value) || Math.abs(value) >= 10 ? String(Math.round(value)) : value.toFixed(2);
}
