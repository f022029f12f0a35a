// What can be taken along: the address of the view, the view as a picture, its numbers. The picture is one SVG, from which
// PNG files are drawn.

import { h, reasonOf, say, svg } from "../dom.js";
import { contextOf, drawRamp, numberText } from "../draw.js";
import { cellExtent, drawImage, extentOf, pictureExtent, rectangle } from "./field.js";
import { paintMap, smallView } from "./matrix.js";
import { viewWords } from "./words.js";
import { cellCentre, nearestCell } from "../scene.js";
import { rowNumbers } from "../statistics.js";

/** @import { Props } from "../dom.js" */
/** @import { Extent } from "./field.js" */
/** @import { SmallView } from "./matrix.js" */
/** @import { Model } from "./model.js" */

/** @typedef {{x: number, y: number, width: number, height: number}} Box */

/** Lengths in a figure: side of the image, of a small map, the gap between these, height of their names, the margin, the least width. */
const FIGURE = { side: 300, cell: 56, gap: 6, name: 14, margin: 24, least: 640 };
const FONT = "system-ui, sans-serif";

/** @param {string} text @param {number} x @param {number} y @param {Props} [props] @returns {SVGElement} */
const figureText = (text, x, y, props) => svg("text", { x, y, ...props }, text);

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

/** @param {(canvas: HTMLCanvasElement) => void} draw @param {Box & {opacity?: number}} box @returns {SVGElement} */
function figureImage(draw, box) {
  const canvas = h("canvas");
  draw(canvas);
  return svg("image", { ...box, href: canvas.toDataURL(), preserveAspectRatio: "none" });
}

/** Outlines a box in the colour of what is chosen. @param {Box} box @param {number} width @returns {SVGElement} */
const figureFrame = (box, width) => svg("rect", { ...box, fill: "none", stroke: "#d9480f", "stroke-width": width });

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

  /** @param {number} number @param {number} head @param {Box} box @param {SmallView} [view] */
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

/** Pixels of a PNG for each unit of the figure. */
const PNG_SCALE = 2;

/** What a spreadsheet would take for a formula, which may run programs and send what is in the sheet. */
const FORMULA = /^[=+\-@\t\r\n]/;

/**
 * Writes a line. Text that would be a formula gets an apostrophe in front, as OWASP advises; numbers stay as they are.
 * @param {(string | number | null | undefined)[]} fields
 * @returns {string}
 */
export function csvLine(fields) {
  return fields
    .map((field) => {
      const plain = field === null || field === undefined || Number.isNaN(field) ? "" : String(field);
      const text = typeof field === "string" && FORMULA.test(plain) ? `'${plain}` : plain;
      return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
    })
    .join(",");
}

/** @param {Record<string, string | number | null | undefined>[]} rows all with the same names @returns {string} */
function csvText(rows) {
  return [Object.keys(rows[0] ?? {}), ...rows.map(Object.values)].map((row) => `${csvLine(row)}\n`).join("");
}

/**
 * Writes a line for each head of the network: its numbers from the present query.
 * @param {Model} model
 * @returns {string}
 */
function headsCsv(model) {
  const { query, prefix, image, average, part } = model.state.get();
  const network = model.network();
  const tokens = [...new Set(network.layers.flatMap((layer) => layer.prefix))];
  const [query_row, query_col] = prefix === null ? query : [];
  return csvText(
    network.layers.flatMap((layer, number) => {
      const rows = model.shown(number)?.rows;
      if (!rows) return [];
      return Array.from({ length: layer.heads }, (_, head) => {
        const found = rowNumbers(layer, rows, head);
        return {
          network: network.name,
          image: average ? "mean" : model.scene.images[image].name,
          part,
          query_row,
          query_col,
          query_token: prefix === null ? "" : layer.prefix[prefix],
          layer: number + 1,
          name: layer.name,
          head: head + 1,
          shift_down: found.shift?.[0],
          shift_right: found.shift?.[1],
          spread: found.spread,
          entropy: found.entropy,
          hard_share: found.hardShare,
          hard_down: found.hardShift?.[0],
          hard_right: found.hardShift?.[1],
          prefix_share: found.prefixShare,
          ...Object.fromEntries(tokens.map((name) => [name, found.prefix[layer.prefix.indexOf(name)]])),
        };
      });
    }),
  );
}

/**
 * Writes a line for each key of the chosen head: its place and its weight or score.
 * @param {Model} model
 * @returns {string}
 */
function mapCsv(model) {
  const { layer, head, values } = model.state.get();
  const { keys } = model.layer();
  return csvText(
    Array.from(model.map(layer, head), (value, key) => {
      const [key_row, key_col] = [Math.floor(key / keys.grid[1]), key % keys.grid[1]];
      const [image_row, image_col] = cellCentre(keys, [key_row, key_col]);
      return { key_row, key_col, image_row, image_col, [values === "weights" ? "weight" : "score"]: value };
    }),
  );
}

/** Gives a file to the reader. @param {BlobPart} content @param {string} type @param {string} name */
function offerFile(content, type, name) {
  const url = URL.createObjectURL(new Blob([content], { type }));
  const link = h("a", { href: url, download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}

/** @param {SVGSVGElement} figure @returns {string} */
const markupOf = (figure) => new XMLSerializer().serializeToString(figure);

/** @param {ReturnType<typeof makeFigure>} made @returns {Promise<Blob>} */
async function pngOf({ figure, width, height }) {
  const image = new Image();
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(markupOf(figure))}`;
  await image.decode();
  const canvas = h("canvas", { width: width * PNG_SCALE, height: height * PNG_SCALE });
  contextOf(canvas).drawImage(image, 0, 0, canvas.width, canvas.height);
  return new Promise((resolve, reject) =>
    canvas.toBlob(
      (blob) => (blob ? resolve(blob) : reject(new Error("this browser cannot write the picture"))),
      "image/png",
    ),
  );
}

/**
 * @param {Model} model
 * @param {() => string | null} address of this view; null if the page has none of its own
 * @param {() => string} sentence about the chosen head
 * @returns {HTMLElement}
 */
export function createSaving(model, address, sentence) {
  const status = h("span", { role: "status", class: "save-status" });
  const name = (/** @type {string} */ ending) => {
    const { layer, head } = model.state.get();
    return `${model.network().name}-layer-${layer + 1}-head-${head + 1}.${ending}`.replaceAll(/[^\w.-]+/g, "-");
  };
  const figure = () => makeFigure(model, sentence());
  /** @type {[string, () => void | Promise<void>][]} */
  const actions = [
    ["Save as PNG", async () => offerFile(await pngOf(figure()), "image/png", name("png"))],
    ["Save as SVG", () => offerFile(markupOf(figure().figure), "image/svg+xml", name("svg"))],
    ["Save numbers as CSV", () => offerFile(headsCsv(model), "text/csv", `${model.network().name}-heads.csv`)],
    ["Save map as CSV", () => offerFile(mapCsv(model), "text/csv", name("csv"))],
  ];
  if (address() !== null) {
    actions.unshift([
      "Copy link",
      async () => {
        await navigator.clipboard.writeText(address() ?? "");
        const lost = model.anyMoved() || model.scene.images[model.state.get().image].own;
        say(status, `The link to this view is on the clipboard${lost ? ", without own images and moved heads" : ""}.`);
      },
    ]);
  }
  const run = async (/** @type {() => void | Promise<void>} */ action) => {
    say(status, "");
    try {
      await action();
    } catch (error) {
      say(status, reasonOf(error));
    }
  };
  const buttons = actions.map(([text, action]) => h("button", { onclick: () => void run(action) }, text));
  return h("div", { class: "saving", role: "group", "aria-label": "Take this view along" }, ...buttons, status);
}
