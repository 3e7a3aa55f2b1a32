// The main metric of the runs: its name, its digits, and which way is worse. An accuracy is a share, an RMSE an amount.

import { amount, percent } from "./format.js";

export const metric = { name: "accuracy", title: "accuracy", percent: true, higher: true, bounds: [0, 1] };

export function setMetric(block) {
  const { name, title, percent: share, higher_is_better: higher } = block.metric;
  Object.assign(metric, { name, title, percent: share, higher });
  if (share) return;
  let [low, high] = [0, 0];
  for (const own of block.algorithms)
    for (const row of [own.value, own.low, own.high])
      for (const value of row) {
        if (value < low) low = value;
        if (value > high) high = value;
      }
  metric.bounds = [low, high + 0.05 * (high - low)];
}

export function metricTitle() {
  return metric.title[0].toUpperCase() + metric.title.slice(1);
}

export function bare(value, half = null) {
  return metric.percent ? percent(value, half) : amount(value, half);
}

export function unit() {
  return metric.percent ? " %" : "";
}

export function told(value, half = null) {
  return bare(value, half) + unit();
}

function span(low, high) {
  const half = (high - low) / 2;
  return `${bare(low, half)}–${bare(high, half)}`;
}

export function withSpan(own, client, sign = unit()) {
  // A client's figure, and its interval where there is one.
  const text = bare(own.value[client]) + sign;
  return Number.isNaN(own.low[client]) ? text : `${text} (${span(own.low[client], own.high[client])})`;
}

export function summary({ mean, deviation, half }, sign = "") {
  // The mean over runs ± their standard deviation; of one run its figure, and its interval where there is one.
  if (mean === null) return "–";
  if (deviation !== null) return `${bare(mean, deviation)} ± ${bare(deviation, deviation)}${sign}`;
  return half === null ? bare(mean) + sign : `${bare(mean, half)}${sign} (${span(mean - half, mean + half)})`;
}

export function difference(value, half) {
  // A difference, and its interval where there is one.
  if (half === null) return signed(value, null);
  return `${signed(value, half)} (${signed(value - half, half)} to ${signed(value + half, half)})`;
}

export function signed(value, half) {
  if (value === null) return "–";
  const text = bare(Math.abs(value), half);
  if (Number(text) === 0) return text;
  return (value < 0 ? "−" : "+") + text;
}

export function worse(one, other) {
  return metric.higher ? one < other : one > other;
}

export function worstOf(values) {
  return values.reduce((worst, value) => (Number.isNaN(worst) || worse(value, worst) ? value : worst), NaN);
}

export function sidewards() {
  // Where clients that are served worse than others are, seen from the mean.
  return metric.higher ? "below" : "above";
}

export function hasIntervals(own) {
  return own.low.some((value) => !Number.isNaN(value));
}
