// What can be taken along: the address of the view, and the map of the chosen head.

import { h, reasonOf, say } from "../dom.js";
import { contextOf } from "../draw.js";
import { paintMap } from "./matrix.js";
import { cellCentre } from "../scene.js";

/** @import { Model } from "./model.js" */
/** @import { Pair } from "../scene.js" */

/** Least length of the longer side of a picture that is saved, in pixels; every key has as many of them. */
const PNG_SIDE = 600;

/**
 * Writes a line for each key of the chosen head: its place and its weight or score.
 * @param {Model} model
 * @returns {string}
 */
function mapCsv(model) {
  const { layer, head, values } = model.state.get();
  const { keys } = model.layer();
  const lines = Array.from(model.map(layer, head), (value, key) => {
    const place = [Math.floor(key / keys.grid[1]), key % keys.grid[1]];
    const number = Number.isNaN(value) ? "" : value;
    return [...place, ...cellCentre(keys, /** @type {Pair} */ (place)), number].join(",");
  });
  const names = ["key_row", "key_col", "image_row", "image_col", values === "weights" ? "weight" : "score"];
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
  if (!model.shown(layer)) throw new Error("There is no map to save.");
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

/**
 * @param {Model} model
 * @param {() => string | null} address of this view; null if the page has none of its own
 * @returns {HTMLElement}
 */
export function createSaving(model, address) {
  const status = h("span", { role: "status", class: "save-status" });
  const name = (/** @type {string} */ ending) => {
    const { layer, head } = model.state.get();
    return `${model.network().name}-layer-${layer + 1}-head-${head + 1}.${ending}`.replaceAll(/[^\w.-]+/g, "-");
  };
  /** @type {[string, () => void | Promise<void>][]} */
  const actions = [
    ["Save map as PNG", async () => offerFile(await mapPng(model), "image/png", name("png"))],
    ["Save map as CSV", () => offerFile(mapCsv(model), "text/csv", name("csv"))],
  ];
  if (address() !== null) {
    actions.unshift([
      "Copy link",
      async () => {
        if (!navigator.clipboard)
          throw new Error("Browsers let pages of other machines copy nothing: take the link from the address bar.");
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
