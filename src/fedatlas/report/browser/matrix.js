// The matrix of similarities in the order of the groups, linked with the map.

import { ink, kindColor, similarColor } from "./color.js";
import { cosine } from "./data.js";
import { byId, make, renew } from "./dom.js";
import { clip, decimal } from "./format.js";
import { currentSource, groupOf } from "./plane.js";
import { change, choose, listen, state } from "./state.js";

const MOST_ROWS = 500;
const EDGE = 10;
const NAMED = 16; // of so few clients the rows have names
const FOR_NAMES = 96;
const NUMBERED = 8; // of so few the cells have numbers
let block = null;

export function matrixPart(data) {
  block = data;
  if (!block.sources.length || block.count < 2) return null;
  const canvas = make("canvas", {
    id: "matrix-canvas",
    role: "img",
    "aria-label":
      "How similar every two clients are, clients of one group side by side. The table of clients has the same in words.",
  });
  const words = make("p", { class: "note", id: "matrix-note" });
  const node = make(
    "details",
    { class: "matrix", open: true },
    make("summary", {}, "How alike every two clients are"),
    make(
      "div",
      { class: "matrix-body" },
      canvas,
      make("div", {}, make("div", { class: "legend", id: "matrix-scale" }), words),
    ),
  );
  let order = [];
  const painted = document.createElement("canvas");

  const paint = () => {
    order = matrixOrder();
    paintCosines(painted, order, words);
    compose(canvas, painted, order);
  };
  const cell = (event) => {
    const box = canvas.getBoundingClientRect();
    const side = box.width - leftEdge();
    const place = (at) => Math.floor((at / side) * order.length);
    const [row, column] = [place(event.clientY - box.top - topEdge()), place(event.clientX - box.left - leftEdge())];
    return [order[row], order[column]];
  };
  canvas.addEventListener("pointermove", (event) => {
    const [one, other] = cell(event);
    if (one === undefined || other === undefined) return;
    change({ hover: one });
    words.textContent = `${clip(block.clients.name[one], 40)} and ${clip(block.clients.name[other], 40)}: likeness ${decimal(cosine(currentSource(), one, other))}`;
  });
  canvas.addEventListener("pointerleave", () => {
    change({ hover: null });
    tellMatrix(words);
  });
  canvas.addEventListener("click", (event) => {
    const [one] = cell(event);
    if (one !== undefined) choose(one);
  });
  node.addEventListener("toggle", () => node.open && paint());
  new ResizeObserver(() => compose(canvas, painted, order)).observe(canvas);
  listen(["plane", "grouping", "theme"], () => node.open && paint());
  listen(["hover", "chosen"], () => compose(canvas, painted, order));
  queueMicrotask(paint);
  return node;
}

function matrixOrder() {
  const source = currentSource();
  const place = new Map(source.order.map((client, i) => [client, i]));
  const order = [...source.order].sort((a, b) => groupOf(a) - groupOf(b) || place.get(a) - place.get(b));
  if (order.length <= MOST_ROWS) return order;
  return Array.from({ length: MOST_ROWS }, (_, i) => order[Math.floor((i * order.length) / MOST_ROWS)]);
}

function paintCosines(painted, order, words) {
  const source = currentSource();
  const size = order.length;
  const values = new Float32Array(size * size);
  let [least, most] = [1, -1];
  for (let i = 0; i < size; i += 1) {
    for (let j = i; j < size; j += 1) {
      const value = i === j ? 1 : cosine(source, order[i], order[j]);
      values[i * size + j] = value;
      values[j * size + i] = value;
      if (i !== j) [least, most] = [Math.min(least, value), Math.max(most, value)];
    }
  }
  painted.width = size;
  painted.height = size;
  const pen = painted.getContext("2d");
  const image = pen.createImageData(size, size);
  values.forEach((value, at) => {
    const [red, green, blue] = similarColor((value - least) / (most - least || 1));
    image.data.set([red, green, blue, 255], 4 * at);
  });
  pen.putImageData(image, 0, 0);
  const bar = make("span", { class: "ramp", "aria-hidden": "true" });
  for (let i = 0; i < 24; i += 1)
    bar.append(make("i", { style: { background: `rgb(${similarColor(i / 23).join(",")})` } }));
  const ends = [decimal(least), decimal(most)];
  renew(byId("matrix-scale"), make("span", {}, ends[0]), bar, make("span", {}, ends[1]));
  tellMatrix(words);
}

function topEdge() {
  return block.count <= NAMED ? FOR_NAMES : EDGE;
}

function leftEdge() {
  return block.count <= NAMED ? FOR_NAMES : EDGE;
}

function tellMatrix(words) {
  const shown = block.count > MOST_ROWS ? ` ${MOST_ROWS} of the clients are drawn.` : "";
  words.textContent = `Likeness of every two clients: 1 is alike, 0 unrelated, −1 opposite.${shown}`;
  words.title = `The cosine of the two clients' vectors, to within ${currentSource().error}`;
}

function compose(canvas, painted, order) {
  const box = canvas.getBoundingClientRect();
  if (!box.width || !order.length) return;
  const ratio = window.devicePixelRatio || 1;
  const [left, top, edge] = [leftEdge() * ratio, topEdge() * ratio, EDGE * ratio];
  const wide = Math.round(box.width * ratio);
  const side = wide - left;
  const tall = Math.round(side + top);
  if (canvas.width !== wide || canvas.height !== tall) {
    [canvas.width, canvas.height] = [wide, tall];
    canvas.style.setProperty("aspect-ratio", `${wide} / ${tall}`);
  }
  const pen = canvas.getContext("2d");
  const step = side / order.length;
  pen.clearRect(0, 0, wide, tall);
  pen.imageSmoothingEnabled = false;
  pen.drawImage(painted, left, top, side, side);
  const bar = 0.6 * edge;
  order.forEach((client, i) => {
    // A client with itself is no pair.
    pen.fillStyle = ink("line");
    pen.fillRect(left + i * step, top + i * step, step, step);
    pen.fillStyle = kindColor(groupOf(client));
    pen.fillRect(left + i * step, top - edge, step + 0.5, bar);
    pen.fillRect(left - edge, top + i * step, bar, step + 0.5);
  });
  if (block.count <= NAMED) {
    drawNames(pen, order, left - edge - 4 * ratio, top, step, ratio);
    pen.save();
    pen.translate(left, top);
    pen.rotate(-Math.PI / 2);
    drawNames(pen, order, edge + 4 * ratio, 0, step, ratio, "left");
    pen.restore();
  }
  if (block.count <= NUMBERED) drawNumbers(pen, order, left, top, step, ratio);
  const at = order.indexOf(state.hover ?? state.chosen ?? -1);
  if (at < 0) return;
  pen.strokeStyle = ink("ink");
  pen.lineWidth = Math.max(1, ratio);
  pen.strokeRect(left, top + at * step, side, Math.max(step, 2));
  pen.strokeRect(left + at * step, top, Math.max(step, 2), side);
}

function drawNames(pen, order, at, top, step, ratio, align = "right") {
  pen.font = `${11.5 * ratio}px system-ui, sans-serif`;
  pen.textBaseline = "middle";
  pen.textAlign = align;
  order.forEach((client, i) => {
    pen.fillStyle = client === state.chosen ? ink("ink") : ink("muted");
    pen.fillText(clip(block.clients.name[client], 13), at, top + (i + 0.5) * step);
  });
}

function drawNumbers(pen, order, left, top, step, ratio) {
  const source = currentSource();
  const pairs = order.flatMap((one, i) =>
    order.flatMap((other, j) => (i === j ? [] : [[i, j, cosine(source, one, other)]])),
  );
  const values = pairs.map((pair) => pair[2]);
  const [least, most] = [Math.min(...values), Math.max(...values)];
  pen.font = `${12 * ratio}px system-ui, sans-serif`;
  pen.textAlign = "center";
  pen.textBaseline = "middle";
  for (const [i, j, value] of pairs) {
    // Cells of alike clients are dark on paper, and light in the dark.
    pen.fillStyle = ink((value - least) / (most - least || 1) > 0.5 ? "paper" : "ink");
    pen.fillText(decimal(value), left + (j + 0.5) * step, top + (i + 0.5) * step);
  }
}
