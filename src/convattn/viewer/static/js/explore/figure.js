// The view as one SVG: image, maps of all heads, the chosen one, the colour bar. PNG files are drawn from it.

import { h, svg } from "../dom.js";
import { drawRamp, numberText } from "../draw.js";
import { nearestCell } from "../scene.js";
import { cellExtent, extentOf, rectangle } from "./field.js";
import { drawImage, pictureExtent } from "./query.js";
import { paintMap, smallView } from "./small.js";
import { queryWords } from "./words.js";

/** @typedef {import("./model.js").Model} Model */
/** @typedef {import("./field.js").Extent} Extent */
/** @typedef {{x: number, y: number, width: number, height: number}} Box */

/** Lengths in a figure: side of the image, of a small map, the gap between these, height of their names, the margin. */
const FIGURE = { side: 300, cell: 56, gap: 6, name: 14, margin: 24, top: 92 };

/**
 * @param {string} text
 * @param {number} x
 * @param {number} y
 * @param {Record<string, unknown>} [props]
 * @returns {SVGElement}
 */
function figureText(text, x, y, props) {
  return svg(
    "text",
    { x, y, "font-family": "system-ui, sans-serif", "font-size": 13, fill: "currentColor", ...props },
    text,
  );
}

/**
 * @param {(canvas: HTMLCanvasElement) => void} draw
 * @param {Box} box
 * @returns {SVGElement}
 */
function figureImage(draw, box) {
  const canvas = h("canvas");
  draw(canvas);
  const style = { "image-rendering": "pixelated" };
  return svg("image", { ...box, href: canvas.toDataURL(), preserveAspectRatio: "none", style });
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
  const { layer: chosenLayer, head: chosenHead, query, prefix, image } = state.get();
  const { side, cell, gap, name: line, margin, top } = FIGURE;
  const network = model.network();
  const layer = model.layer();
  const mark = prefix === null ? cellExtent(layer, nearestCell(layer, query)) : null;

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
    figureText(`${scene.title}: ${network.title}`, margin, 36, { "font-size": 18, "font-weight": 600 }),
    figureText(`${scene.images[image].name}, query ${queryWords(state.get(), layer.prefix)}. ${sentence}`, margin, 58),
    figureImage((canvas) => drawImage(model, canvas), picture),
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

  const start = margin + side + 40;
  let y = top;
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
  const width = start + Math.max(...network.layers.map(({ heads }) => heads)) * (cell + gap) + margin;
  const height = Math.max(bar + 32, y) + margin;
  const [paper, ink] = model.theme() === "dark" ? ["#15171a", "#ececea"] : ["#ffffff", "#1c1d1f"];
  const props = { xmlns: "http://www.w3.org/2000/svg", width, height, viewBox: `0 0 ${width} ${height}`, color: ink };
  return { figure: svg("svg", props, svg("rect", { width, height, fill: paper }), ...parts), width, height };
}
