// Colours that the colour-blind can tell apart: eight for kinds (with shapes beyond eight), and a ramp for amounts.

import { make } from "./dom.js";

// After Okabe and Ito; light and dark variants have enough contrast with the ground.
const LIGHT = ["#0072b2", "#d98200", "#00825f", "#b8568f", "#2f9bd8", "#c44e00", "#6a5acd", "#77771f"];
const DARK = ["#4aa8e0", "#f0ab35", "#2fc397", "#e294c0", "#86cdf5", "#f2793a", "#a79bf0", "#c4c45a"];
// After cividis: it grows lighter steadily, and looks the same to the red-green blind.
const RAMP = [
  "#00224e",
  "#123570",
  "#3b496c",
  "#575d6d",
  "#707173",
  "#8a8678",
  "#a59c74",
  "#c3b369",
  "#e1cc55",
  "#fee838",
];
const SIMILAR_LIGHT = ["#f4f6f8", "#d3e2ee", "#9cc2de", "#5598c7", "#1d659f", "#0a3560"];
const SIMILAR_DARK = ["#14191f", "#1d3247", "#28557b", "#3f84b8", "#7fb9e2", "#dcefff"];
const SHAPES = ["circle", "square", "triangle", "diamond"];

const STEPS = 256;
const probe = make("i");
let cache = null;

export function forgetColors() {
  cache = null;
}

// What follows from the theme, computed once for each.
function theme() {
  if (cache) return cache;
  const set = document.documentElement.dataset.theme;
  const dark = set ? set === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  const steps = Array.from({ length: STEPS }, (_, i) => i / (STEPS - 1));
  cache = {
    kinds: dark ? DARK : LIGHT,
    ramp: steps.map((value) => `rgb(${between(RAMP, dark ? 0.4 + 0.6 * value : 0.95 * value).join(",")})`),
    similar: steps.map((value) => between(dark ? SIMILAR_DARK : SIMILAR_LIGHT, value)),
    inks: new Map(),
  };
  return cache;
}

function step(value) {
  return Math.round(Math.max(0, Math.min(1, value)) * (STEPS - 1));
}

export function ink(name) {
  // As an element has it, which says which of two colours it is in this theme.
  const inks = theme().inks;
  if (!inks.has(name)) {
    probe.style.setProperty("color", `var(--${name})`);
    document.body.append(probe);
    inks.set(name, getComputedStyle(probe).color);
    probe.remove();
  }
  return inks.get(name);
}

export function kindColor(index) {
  if (index < 0) return ink("faint");
  return theme().kinds[index % 8];
}

export function kindShape(index) {
  return index < 0 ? SHAPES[0] : SHAPES[Math.floor(index / 8) % SHAPES.length];
}

function parts(color) {
  return [1, 3, 5].map((start) => parseInt(color.slice(start, start + 2), 16));
}

function between(anchors, value) {
  const place = Math.max(0, Math.min(1, value)) * (anchors.length - 1);
  const left = Math.min(Math.floor(place), anchors.length - 2);
  const [low, high] = [parts(anchors[left]), parts(anchors[left + 1])];
  return low.map((part, i) => Math.round(part + (place - left) * (high[i] - part)));
}

export function rampColor(value) {
  if (Number.isNaN(value)) return ink("faint");
  return theme().ramp[step(value)];
}

export function similarColor(value) {
  return theme().similar[step(value)];
}

export function suspicionColor(level) {
  return level === 2 ? kindColor(5) : level === 1 ? kindColor(0) : ink("faint");
}
