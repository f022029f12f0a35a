// The view as one SVG: image, maps of all heads, the chosen one, the colour bar. PNG files are drawn from it.

import { h, svg } from "../dom.js";
import { contextOf, drawRamp, numberText } from "../draw.js";
import { nearestCell } from "../scene.js";
import { cellExtent, extentOf, rectangle } from "./field.js";
import { drawImage, pictureExtent } from "./query.js";
import { paintMap, smallView } from "./small.js";
import { viewWords } from "./words.js";

/** @typedef {import("./model.js").Model} Model */
/** @typedef {import("./field.js").Extent} Extent */
/** @typedef {{x: number, y: number, width: number, height: number}} Box */

/** Lengths in a figure: side of the image, of a small map, the gap between these, height of their names, the margin, the least width. */
const FIGURE = { side: 300, cell: 56, gap: 6, name: 14, margin: 24, least: 640 };
const FONT = "system-ui, sans-serif";

/**
 * @param {string} text
 * @param {number} x
 * @param {number} y
 * @param {Record<string, unknown>} [props]
 * @returns {SVGElement}
 */
function figureText(text, x, y, props) {
  return svg("text", { x, y, ...props }, text);
}

/**
 * Breaks a text between words, and very long words anywhere.
 * @param {string} text
 * @param {number} size of the letters
 * @param {number} width
 * @returns {string[]} lines that are no wider
 */
function brokenText(text, size, width) {
  const context = contextOf(h("canvas"));
  context.font = `600 ${size}px ${FONT}`;
  const lines = [""];
  for (const word of text.match(/\S{1,20}\s*/gu) ?? []) {
    const longer = lines[lines.length - 1] + word;
    if (context.measureText(longer).width > width) lines.push(word);
    else lines[lines.length - 1] = longer;
  }
  return lines;
}

/**
 * @param {(canvas: HTMLCanvasElement) => void} draw
 * @param {Box & {opacity?: number}} box
 * @returns {SVGElement}
 */
function figureImage(draw, box) {
  const canvas = h("canvas");
  draw(canvas);
  return svg("image", { ...box, href: canvas.toDataURL(), preserveAspectRatio: "none" });
}

/**
 * @param {Box} box
 * @param {number} width of the line
 * @returns {SVGElement} an outline in the colour of what is chosen
 */
function figureFrame(box, width) {
  return svg("rect", { ...box, fill: "none", stroke: "#d9480f", "stroke-width": width });
}

/**
 * @param {Extent} extent of what is drawn
 * @param {Extent | null} cell of the query
 * @param {Box} box
 * @returns {SVGElement[]} the outline of the query
 */
function figureQuery(extent, cell, box) {
  if (!cell) return [];
  const scale = box.width / (extent.right - extent.left);
  const { x, y, width, height } = rectangle(cell);
  const place = { x: box.x + (x - extent.left) * scale, y: box.y + (y - extent.top) * scale };
  return [figureFrame({ ...place, width: width * scale, height: height * scale }, 1.5)];
}

/**
 * Makes the figure.
 * @param {Model} model
 * @param {string} sentence about the chosen head
 * @returns {{figure: SVGSVGElement, width: number, height: number}}
 */
export function makeFigure(model, sentence) {
  const { state, scene } = model;
  const { layer: chosenLayer, head: chosenHead, query, prefix, average } = state.get();
  const { side, cell, gap, name: line, margin, least } = FIGURE;
  const network = model.network();
  const layer = model.layer();
  const mark = prefix === null ? cellExtent(layer, nearestCell(layer, query)) : null;

  const start = margin + side + 40;
  const heads = Math.max(...network.layers.map((one) => one.heads));
  const width = Math.max(start + heads * (cell + gap) + margin, least);
  let y = 12;
  const words = (/** @type {string} */ text, /** @type {number} */ size, /** @type {number} */ weight) =>
    brokenText(text, size, width - 2 * margin).map((one) =>
      figureText(one, margin, (y += size + 6), { "font-size": size, "font-weight": weight }),
    );
  const caption = [
    ...words(`${scene.title}: ${network.title}`, 18, 600),
    ...words(`${viewWords(scene, state.get(), layer.prefix)}. ${sentence}`, 13, 400),
  ];
  const top = (y += 34);

  /** @param {number} number @param {number} head @param {Box} box @param {import("./small.js").SmallView} [view] */
  const mapOf = (number, head, box, view) => figureImage((canvas) => paintMap(model, canvas, number, head, view), box);

  /** @param {Extent} extent @param {number} y @returns {Box} */
  const wide = ({ top: from, left, bottom, right }, y) => {
    return { x: margin, y, width: side, height: (side * (bottom - from)) / (right - left) };
  };
  const whole = pictureExtent(model);
  const keys = extentOf(layer.keys, layer.keys.grid);
  const picture = wide(whole, top);
  const large = wide(keys, picture.y + picture.height + 44);
  const bar = large.y + large.height + 16;
  const [low, high] = model.limits(chosenLayer, chosenHead);
  const parts = [
    ...caption,
    figureImage((canvas) => drawImage(model, canvas), { ...picture, opacity: average ? 0.3 : 1 }),
    ...figureQuery(whole, mark, picture),
    figureText(`Layer ${chosenLayer + 1}, head ${chosenHead + 1}`, margin, large.y - 10, { "font-weight": 600 }),
    mapOf(chosenLayer, chosenHead, large),
    ...figureQuery(keys, mark, large),
    figureImage((canvas) => drawRamp(canvas, model.theme()), { x: margin, y: bar, width: side, height: 10 }),
    ...["start", "middle", "end"].map((anchor, at) => {
      const text = numberText(low + (at / 2) * (high - low), 2);
      return figureText(text, margin + (at / 2) * side, bar + 26, { "font-size": 11, "text-anchor": anchor });
    }),
  ];

  for (const [number, { heads, name }] of network.layers.entries()) {
    const view = smallView(model, number);
    const height = view ? (cell * view.rows) / view.cols : cell;
    parts.push(figureText(`Layer ${number + 1}  ${name}`, start, y - 3, { "font-size": 10 }));
    for (let head = 0; head < heads; head++) {
      const box = { x: start + head * (cell + gap), y, width: cell, height };
      if (view) parts.push(mapOf(number, head, box, view));
      if (number === chosenLayer && head === chosenHead) parts.push(figureFrame(box, 2.5));
    }
    y += height + gap + line;
  }
  const height = Math.max(bar + 32, y) + margin;
  const [paper, ink] = model.theme() === "dark" ? ["#15171a", "#ececea"] : ["#ffffff", "#1c1d1f"];
  const letters = { "font-family": FONT, "font-size": 13, fill: ink, "image-rendering": "pixelated" };
  const props = { xmlns: "http://www.w3.org/2000/svg", width, height, viewBox: `0 0 ${width} ${height}`, ...letters };
  return { figure: svg("svg", props, svg("rect", { width, height, fill: paper }), ...parts), width, height };
}
