// What can be taken along: the address of the view, and the map of the chosen head.

import { h, reasonOf, say, svg } from "../dom.js";
import { contextOf, levelOf, numberText, ramp } from "../draw.js";
import { extentOf } from "./field.js";
import { paintMap, smallView } from "./matrix.js";
import { partOf } from "../numbers.js";
import { cellCentre } from "../scene.js";

/** @import { Model } from "./model.js" */
/** @import { Pair } from "../scene.js" */

/** Least length of the longer side of a picture that is saved, in pixels; every key has as many of them. */
const PNG_SIDE = 600;

/**
 * Writes a line for each key of the chosen head: its place, or the name of a token, and its weight or score.
 * @param {Model} model
 * @returns {string}
 */
function mapCsv(model) {
  const { layer, head, values } = model.state.get();
  const { keys, prefix } = model.layer();
  const lines = Array.from(model.map(layer, head), (value, key) => {
    const place = [Math.floor(key / keys.grid[1]), key % keys.grid[1]];
    const number = Number.isNaN(value) ? "" : value;
    return ["", ...place, ...cellCentre(keys, /** @type {Pair} */ (place)), number].join(",");
  });
  const rows = model.shown(layer)?.rows;
  if (rows && values === "weights")
    lines.unshift(
      ...prefix.map((token, at) => [token, "", "", "", "", partOf(rows.prefix, head, prefix.length)[at]].join(",")),
    );
  const names = ["token", "key_row", "key_col", "image_row", "image_col", values === "weights" ? "weight" : "score"];
  return [names.join(","), ...lines, ""].join("\n");
}

/** Gives a file to the reader. @param {BlobPart} content @param {string} type @param {string} name */
function offerFile(content, type, name) {
  const url = URL.createObjectURL(new Blob([content], { type }));
  const link = h("a", { href: url, download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}

/** Draws the map of the chosen head. @param {Model} model @returns {Promise<Blob>} */
async function mapPng(model) {
  const map = h("canvas");
  const { layer, head } = model.state.get();
  paintMap(model, map, layer, head);
  const scale = Math.ceil(PNG_SIDE / Math.max(map.width, map.height));
  const large = h("canvas", { width: map.width * scale, height: map.height * scale });
  const context = contextOf(large);
  context.imageSmoothingEnabled = false;
  context.drawImage(map, 0, 0, large.width, large.height);
  return new Promise((resolve, reject) =>
    large.toBlob((blob) => (blob ? resolve(blob) : reject(new Error("this browser cannot write the picture")))),
  );
}

/** What keeps the background from showing between cells that touch. */
const SEAMLESS = { "shape-rendering": "crispEdges" };

/** Width of the map in a picture for print, and of its scale with the numbers, in points. */
const PRINT = { map: 240, gap: 10, scale: 12, numbers: 48, text: 9 };

/**
 * Draws the map of the chosen head for print: a square for each key, a ring at the query, the scale and a caption of two lines.
 * @param {Model} model
 * @returns {string}
 */
function mapSvg(model) {
  const { layer, head, values } = model.state.get();
  const query = smallView(model, layer)?.query;
  const [rows, cols] = model.layer().keys.grid;
  const side = PRINT.map / cols;
  const [width, height] = [PRINT.map + PRINT.gap + PRINT.scale + PRINT.numbers, side * rows + 4 * PRINT.text];
  const picture = svg("svg", { width, height, viewBox: `0 0 ${width} ${height}` });
  const [low, high] = model.limits(layer, head);
  const colours = ramp("light");
  const colourOf = (/** @type {number} */ level) =>
    level > 255 ? "#e4e4e2" : `rgb(${colours.slice(3 * level, 3 * level + 3).join(",")})`;
  model.map(layer, head).forEach((value, key) => {
    const place = { x: (key % cols) * side, y: Math.floor(key / cols) * side, width: side, height: side };
    const fill = colourOf(levelOf(value, low, high));
    picture.append(svg("rect", { ...SEAMLESS, ...place, fill }));
  });
  if (query) {
    const extent = extentOf(model.layer().keys, model.layer().keys.grid); // all of the map, whatever the page shows
    const cx = (PRINT.map * ((query.left + query.right) / 2 - extent.left)) / (extent.right - extent.left);
    const cy = (side * rows * ((query.top + query.bottom) / 2 - extent.top)) / (extent.bottom - extent.top);
    for (const [stroke, thick] of Object.entries({ white: 2.5, "#b93a00": 1.2 })) {
      picture.append(svg("circle", { cx, cy, r: Math.max(side / 2, 4), fill: "none", stroke, "stroke-width": thick }));
    }
  }
  const steps = 64;
  const x = PRINT.map + PRINT.gap;
  const step = (side * rows) / steps;
  for (let at = 0; at < steps; at++) {
    const fill = colourOf(Math.round((255 * (steps - 1 - at)) / (steps - 1)));
    picture.append(svg("rect", { ...SEAMLESS, x, y: at * step, width: PRINT.scale, height: step, fill }));
  }
  const font = { "font-family": "sans-serif", "font-size": PRINT.text };
  const beside = x + PRINT.scale + 3;
  picture.append(svg("text", { ...font, x: beside, y: PRINT.text }, numberText(high)));
  const middle = low + (high - low) * (low < 0 ? 0.5 : 0.25); // weights have the levels of their square roots
  picture.append(svg("text", { ...font, x: beside, y: (side * rows) / 2 }, numberText(middle)));
  picture.append(svg("text", { ...font, x: beside, y: side * rows }, numberText(low)));
  const what = values === "weights" ? "attention" : "score before softmax";
  const lines = [
    `${model.network().title}, layer ${model.layer().number}, head ${head + 1}`.replaceAll(/\p{Cc}/gu, " "), // XML has no such characters
    `${what} of each key${query ? "; ring: query" : ""}`,
  ];
  lines.forEach((line, at) => {
    picture.append(svg("text", { ...font, x: 0, y: side * rows + (2 + 1.4 * at) * PRINT.text }, line));
  });
  return new XMLSerializer().serializeToString(picture);
}

/**
 * @param {Model} model
 * @param {() => string | null} address of this view; null if the page has none of its own
 * @returns {HTMLElement}
 */
export function createSaving(model, address) {
  const status = h("span", { role: "status", class: "save-status" });
  const name = (/** @type {string} */ ending) => {
    const { head } = model.state.get();
    return `${model.network().name}-layer-${model.layer().number}-head-${head + 1}.${ending}`.replaceAll(
      /[^\w.-]+/g,
      "-",
    );
  };
  /** @type {[string, () => void | Promise<void>][]} */
  const actions = [
    ["Save map as PNG", async () => offerFile(await mapPng(model), "image/png", name("png"))],
    ["Save map as SVG", () => offerFile(mapSvg(model), "image/svg+xml", name("svg"))],
    ["Save map as CSV", () => offerFile(mapCsv(model), "text/csv", name("csv"))],
  ];
  if (address() !== null) {
    actions.unshift([
      "Copy link",
      async () => {
        if (!navigator.clipboard)
          throw new Error("Browsers let pages of other machines copy nothing: take the link from the address bar.");
        await navigator.clipboard.writeText(address() ?? "");
        const lost = model.scene.images[model.state.get().image].own;
        say(status, `The link to this view is on the clipboard${lost ? ", without own images" : ""}.`);
      },
    ]);
  }
  const run = async (/** @type {() => void | Promise<void>} */ action, /** @type {boolean} */ isMap) => {
    say(status, "");
    try {
      if (isMap && !model.shown(model.state.get().layer)) throw new Error("There is no map to save.");
      await action();
    } catch (error) {
      say(status, reasonOf(error));
    }
  };
  const buttons = actions.map(([text, action]) =>
    h("button", { onclick: () => void run(action, text.startsWith("Save")) }, text),
  );
  return h("div", { class: "saving", role: "group", "aria-label": "Take this view along" }, ...buttons, status);
}
