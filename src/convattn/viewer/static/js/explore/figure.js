// The view as one SVG: image, maps of all heads, the chosen one, the colour bar. PNG files are drawn from it.

import { cssColour } from "../colour.js";
import { svg } from "../dom.js";
import { drawMap, numberText } from "../draw.js";
import { nearestCell } from "../scene.js";
import { rowNumbers } from "../statistics.js";
import { cellExtent, extentOf, rectangle } from "./field.js";
import { drawImage, pictureSize } from "./query.js";
import { smallView } from "./small.js";
import { headSentence, queryWords } from "./words.js";

/** @typedef {import("./model.js").Model} Model */
/** @typedef {import("./field.js").Extent} Extent */

const FIGURE_CELL = 56;
const FIGURE_GAP = 6;
const FIGURE_SIDE = 300;
const FIGURE_MARGIN = 24;
const FIGURE_FONT = "system-ui, sans-serif";

/** @param {string} text @param {number} x @param {number} y @param {Record<string, unknown>} [props] @returns {SVGElement} */
function figureText(text, x, y, props = {}) {
  return svg("text", { x, y, "font-family": FIGURE_FONT, "font-size": 13, fill: "currentColor", ...props }, text);
}

/**
 * @param {(canvas: HTMLCanvasElement) => void} draw
 * @param {{x: number, y: number, width: number, height: number}} box
 * @returns {SVGElement}
 */
function figureImage(draw, box) {
  const canvas = document.createElement("canvas");
  draw(canvas);
  return svg("image", {
    ...box,
    href: canvas.toDataURL(),
    preserveAspectRatio: "none",
    style: { "image-rendering": "pixelated" },
  });
}

/**
 * @param {Extent} extent of what is drawn
 * @param {Extent} cell
 * @param {{x: number, y: number, width: number, height: number}} box
 * @returns {SVGElement} the outline of the query
 */
function figureQuery(extent, cell, box) {
  const [down, across] = [box.height / (extent.bottom - extent.top), box.width / (extent.right - extent.left)];
  const x = box.x + (cell.left - extent.left) * across;
  const y = box.y + (cell.top - extent.top) * down;
  const size = { x, y, width: (cell.right - cell.left) * across, height: (cell.bottom - cell.top) * down };
  return svg("rect", { ...size, fill: "none", stroke: "#d9480f", "stroke-width": 1.5 });
}

/**
 * Makes the figure.
 * @param {Model} model
 * @returns {{figure: SVGSVGElement, width: number, height: number}}
 */
export function makeFigure(model) {
  const { state, scene } = model;
  const { layer: chosenLayer, head: chosenHead, query, prefix, image } = state.get();
  const theme = model.theme();
  const network = model.network();
  const dark = theme === "dark";
  const size = pictureSize(model);
  const whole = extentOf({ first: [0, 0], step: [1, 1] }, size);
  const layer = model.layer();
  const cell = prefix === null ? cellExtent(layer, nearestCell(layer.place, layer.grid, query)) : null;
  /** @type {SVGElement[]} */
  const parts = [];
  const left = FIGURE_MARGIN;
  const pictureBox = { x: left, y: 64, width: FIGURE_SIDE, height: (FIGURE_SIDE * size[0]) / size[1] };
  parts.push(figureText(`${scene.title}: ${network.title}`, left, 36, { "font-size": 18, "font-weight": 600 }));
  parts.push(figureText(`${scene.images[image].name}, query ${queryWords(state.get(), layer.prefix)}`, left, 56));
  parts.push(figureImage((canvas) => drawImage(model, canvas), pictureBox));
  if (cell) parts.push(figureQuery(whole, cell, pictureBox));

  const shown = model.shown(chosenLayer);
  let bottom = pictureBox.y + pictureBox.height;
  if (shown) {
    const keys = extentOf(layer.keys, layer.keys.grid);
    const { width, height } = rectangle(keys);
    const box = { x: left, y: bottom + 44, width: FIGURE_SIDE, height: (FIGURE_SIDE * height) / width };
    parts.push(
      figureText(`Layer ${chosenLayer + 1}, head ${chosenHead + 1}`, left, bottom + 34, { "font-weight": 600 }),
    );
    parts.push(mapOf(model, chosenLayer, chosenHead, box, wholeView(layer)));
    if (cell) parts.push(figureQuery(keys, cell, box));
    bottom = box.y + box.height;
    const sentence = headSentence(layer, chosenLayer, chosenHead, rowNumbers(layer, shown.rows, chosenHead));
    for (const line of wrapWords(sentence, 46)) parts.push(figureText(line, left, (bottom += 18)));
    parts.push(...figureBar(model, left, bottom + 16));
    bottom += 52;
  }

  const start = left + FIGURE_SIDE + 40;
  const most = Math.max(...network.layers.map(({ heads }) => heads));
  for (const [number, { heads, name }] of network.layers.entries()) {
    const view = smallView(model, number);
    const y = 64 + number * (FIGURE_CELL + FIGURE_GAP + 14);
    parts.push(figureText(`Layer ${number + 1}  ${name}`, start, y - 3, { "font-size": 10 }));
    for (let head = 0; head < heads; head++) {
      const box = { x: start + head * (FIGURE_CELL + FIGURE_GAP), y, width: FIGURE_CELL, height: view ? (FIGURE_CELL * view.rows) / view.cols : FIGURE_CELL };
      if (view) parts.push(mapOf(model, number, head, box, view));
      const chosen = number === chosenLayer && head === chosenHead;
      if (chosen) parts.push(svg("rect", { ...box, fill: "none", stroke: "#d9480f", "stroke-width": 2.5 }));
    }
  }
  const width = start + most * (FIGURE_CELL + FIGURE_GAP) + FIGURE_MARGIN;
  const height = Math.max(bottom, 64 + network.layers.length * (FIGURE_CELL + FIGURE_GAP + 14)) + FIGURE_MARGIN;
  const paper = svg("rect", { width, height, fill: dark ? "#15171a" : "#ffffff" });
  const figure = svg(
    "svg",
    {
      xmlns: "http://www.w3.org/2000/svg",
      width,
      height,
      viewBox: `0 0 ${width} ${height}`,
      color: dark ? "#ececea" : "#1c1d1f",
    },
    paper,
    ...parts,
  );
  return { figure, width, height };
}

/**
 * @param {Model} model
 * @param {number} layer
 * @param {number} head
 * @param {{x: number, y: number, width: number, height: number}} box
 * @param {Pick<import("./small.js").SmallView, "rows" | "cols" | "cut">} view
 * @returns {SVGElement}
 */
function mapOf(model, layer, head, box, { rows, cols, cut }) {
  const [low, high] = model.limits(layer, head);
  const values = cut(model.map(layer, head));
  return figureImage((canvas) => drawMap(canvas, values, { rows, cols, low, high, theme: model.theme() }), box);
}

/** @param {import("../scene.js").SceneLayer} layer */
function wholeView({ keys }) {
  return { rows: keys.grid[0], cols: keys.grid[1], cut: (/** @type {Float32Array} */ values) => values };
}

/** @param {Model} model @param {number} x @param {number} y @returns {SVGElement[]} the colour bar */
function figureBar(model, x, y) {
  const { layer, head } = model.state.get();
  const [low, high] = model.limits(layer, head);
  const count = 64;
  const bars = Array.from({ length: count }, (_, at) =>
    svg("rect", {
      x: x + (FIGURE_SIDE * at) / count,
      y,
      width: FIGURE_SIDE / count + 0.5,
      height: 10,
      fill: cssColour(model.theme(), Math.round((255 * at) / (count - 1))),
    }),
  );
  const marks = [0, 0.5, 1].map((share) =>
    figureText(numberText(low + share * (high - low), 2), x + share * FIGURE_SIDE, y + 26, {
      "font-size": 11,
      "text-anchor": ["start", "middle", "end"][2 * share],
    }),
  );
  return [...bars, ...marks];
}

/** @param {string} text @param {number} width in letters @returns {string[]} */
function wrapWords(text, width) {
  /** @type {string[]} */
  const lines = [""];
  for (const word of text.split(" ")) {
    const line = lines[lines.length - 1];
    if (line && line.length + word.length >= width) lines.push(word);
    else lines[lines.length - 1] = line ? `${line} ${word}` : word;
  }
  return lines;
}
