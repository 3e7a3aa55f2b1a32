// The map: clients in a plane. Switches, tools, search; the drawing and the pointer are in other files.

import { byId, choice, make, press, speak } from "./dom.js";
import { plural } from "./format.js";
import { tellKept, tellLegend } from "./legend.js";
import { metric } from "./metric.js";
import { drawMap } from "./paint.js";
import { searchClients } from "./plane.js";
import { addPointer, onKey } from "./pointer.js";
import { drawWith, moveTo, queueDraw, resize, screenOf, sheet, targetPlaces, zoom, zoomAll } from "./sheet.js";
import { change, choose, listen, state } from "./state.js";

const FEW = 12; // of so few clients the map needs less space

export function mapSection(data) {
  sheet.block = data;
  drawWith(drawMap);
  if (!sheet.block.sources.length) return null;
  sheet.places = targetPlaces();
  sheet.canvas = make("canvas", {
    id: "map-canvas",
    class: sheet.block.count <= FEW ? "few" : null,
    tabindex: 0,
    role: "application",
    "aria-label": `Map of ${plural(sheet.block.count, "client")}. Arrow keys move between clients, Enter chooses one, Space adds it to the selection, Escape clears.`,
  });
  const tip = make("div", { id: "tip", class: "tip", "aria-hidden": "true" });
  const frame = make("div", { class: "map-frame" }, tools(), sheet.canvas, tip);
  const node = make(
    "div",
    { class: "map" },
    switches(),
    frame,
    make("div", { id: "legend", class: "legend" }),
    make("p", { id: "kept", class: "note" }),
  );
  addPointer(tip);
  sheet.canvas.addEventListener("keydown", onKey);
  new ResizeObserver(resize).observe(sheet.canvas);
  listen(["plane"], () => {
    sheet.places = targetPlaces(sheet.places);
    moveTo();
    tellKept();
  });
  listen(["colour", "grouping", "algorithm", "frame", "theme"], tellLegend);
  listen(["colour"], () => (byId("colour").value = state.colour));
  listen(
    ["plane", "colour", "area", "grouping", "algorithm", "frame", "theme", "chosen", "hover", "selected", "lines"],
    () => queueDraw(),
  );
  return node;
}

export function finishMap() {
  if (!sheet.canvas) return;
  resize();
  tellLegend();
  tellKept();
}

function switches() {
  const planes = sheet.block.sources.flatMap((source, i) =>
    source.planes.map((plane, j) => [`${i}/${j}`, `${source.title}, ${plane.title}`]),
  );
  const colours = colourOptions();
  if (!colours.some(([key]) => key === state.colour)) state.colour = colours[0][0];
  const search = make("input", {
    id: "map-search",
    type: "search",
    placeholder: `name or ${sheet.block.clients.gathered_by}`,
    on: {
      input: (event) => onSearch(event.target.value),
      keydown: (event) => {
        if (event.key !== "Enter") return;
        const first = searchClients(event.target.value)[0];
        if (first !== undefined) choose(first);
      },
    },
  });
  return make(
    "div",
    { class: "switches" },
    choice("plane", "Place by", planes, state.plane, (value) => change({ plane: value })),
    choice("colour", "Colour by", colours, state.colour, (value) => change({ colour: value })),
    sheet.block.groupings.length > 1
      ? choice(
          "grouping",
          "Groups",
          sheet.block.groupings.map((own, i) => [String(i), own.title]),
          "0",
          (value) => change({ grouping: Number(value) }),
        )
      : null,
    choice(
      "area",
      "Area by",
      [
        ["train", "examples"],
        ["same", "all the same"],
      ],
      state.area,
      (value) => change({ area: value }),
    ),
    make("label", { class: "choice" }, make("span", {}, "Find"), search),
  );
}

function colourOptions() {
  const found = [];
  if (sheet.block.groupings.length) found.push(["group", "group"]);
  if (sheet.block.check) found.push(["suspicion", "suspicion"]);
  if (sheet.block.algorithms.length) found.push(["accuracy", metric.title]);
  if (sheet.block.clients.domains.length) found.push(["domain", sheet.block.clients.gathered_by]);
  found.push(["size", "size"]);
  return found;
}

function tools() {
  const mark = (text) => make("span", { "aria-hidden": "true" }, text);
  return make(
    "div",
    { class: "tools", role: "group", "aria-label": "Tools of the map" },
    press("lasso", "Draw a lasso around clients to select them", "Lasso", false, (event) => {
      sheet.lassoOn = !sheet.lassoOn;
      event.currentTarget.setAttribute("aria-pressed", String(sheet.lassoOn));
      sheet.canvas.classList.toggle("lassoing", sheet.lassoOn);
    }),
    press("lines", "Lines to the nearest clients", "Lines", true, (event) => {
      event.currentTarget.setAttribute("aria-pressed", String(!state.lines));
      change({ lines: !state.lines });
    }),
    press("zoom-in", "Zoom in", mark("+"), null, () => zoom(1.5, middle())),
    press("zoom-out", "Zoom out", mark("−"), null, () => zoom(1 / 1.5)),
    press("zoom-all", "Show all", "All", null, zoomAll),
  );
}

function middle() {
  // Zoom towards the chosen client, or the one that is nearest to the middle, so that the map is never empty.
  const centre = [sheet.width / 2, sheet.height / 2];
  const far = (at) => Math.hypot(at[0] - centre[0], at[1] - centre[1]);
  const chosen = state.chosen === null ? null : screenOf(state.chosen);
  if (chosen && Math.abs(chosen[0] - centre[0]) < centre[0] && Math.abs(chosen[1] - centre[1]) < centre[1])
    return chosen;
  const all = Array.from({ length: sheet.block.count }, (_, client) => screenOf(client));
  return all.reduce((best, at) => (far(at) < far(best) ? at : best));
}

function onSearch(words) {
  sheet.sought = words.trim() ? new Set(searchClients(words)) : null;
  if (sheet.sought) speak(`${plural(sheet.sought.size, "client")} found`);
  queueDraw();
}
