// What can be taken along: the address of the view, the map of the chosen head, its numbers.

import { h, reasonOf, say } from "../dom.js";
import { contextOf } from "../draw.js";
import { paintMap } from "./matrix.js";
import { cellCentre } from "../scene.js";
import { rowNumbers } from "../statistics.js";

/** @import { Model } from "./model.js" */

/** Least length of the longer side of a picture that is saved, in pixels; every key has as many of them. */
const PNG_SIDE = 600;

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

/** Draws the map of the chosen head. @param {Model} model @returns {Promise<Blob>} */
function mapPng(model) {
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
