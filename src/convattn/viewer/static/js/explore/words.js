// What a head does, in plain words: for screen readers, titles and captions.

import { fixedText } from "../draw.js";
import { partOf } from "../numbers.js";
import { displacements } from "../statistics.js";

/** @import { Pair, SceneLayer, Statistic } from "../scene.js" */
/** @import { LayerRows } from "../rows.js" */
/** @import { RowNumbers } from "../statistics.js" */

const AT_QUERY = "at the query itself";

/** Spread below which nearly all attention is at one key, which the mean shift then names. */
const NARROW = 0.5;

/** @param {SceneLayer} layer @returns {"pixels" | "cells"} the unit of displacements */
export function unitOf(layer) {
  return layer.keys.step[0] === 1 && layer.keys.step[1] === 1 ? "pixels" : "cells";
}

/**
 * Returns the unit of displacements in a head report, which are in cells of the queries.
 * @param {SceneLayer} layer
 * @returns {string}
 */
export function reportUnitOf(layer) {
  const { place, keys } = layer;
  return place.step.every((size, axis) => size === keys.step[axis]) ? unitOf(layer) : "cells of queries";
}

/**
 * Says a displacement: "1.0 pixels up and 2.0 to the left".
 * @param {Pair} shift down and right
 * @param {string} unit
 * @param {number} [decimals]
 * @param {(number | null)[]} [errors] standard errors; without them, what rounds to zero is left out
 * @returns {string}
 */
export function shiftWords(shift, unit, decimals = 1, errors = []) {
  /** @type {[number, string, string][]} */
  const parts = [
    [shift[0], "up", "down"],
    [shift[1], "to the left", "to the right"],
  ];
  const said = parts
    .map(([size, before, after], axis) => ({
      size: withError(Math.abs(size), errors[axis], decimals),
      way: size < 0 ? before : after,
    }))
    .filter(({ size }) => Number(size) !== 0);
  if (!said.length) return AT_QUERY;
  const [first, ...rest] = said;
  return [`${first.size} ${unit} ${first.way}`, ...rest.map(({ size, way }) => `${size} ${way}`)].join(" and ");
}

/** @param {Pair} steps whole ones, down and right @returns {string} as an analysis names them: "1 above, 2 left" */
export function directionWords([down, right]) {
  const parts = [down && `${Math.abs(down)} ${down < 0 ? "above" : "below"}`];
  parts.push(right && `${Math.abs(right)} ${right < 0 ? "left" : "right"}`);
  return parts.filter(Boolean).join(", ") || "itself";
}

/**
 * Returns the word of a head: that of the report, where the head is as it was measured; else, of a head that looks by
 * displacement alone, the word that an analysis gives it, and where it looks from this query.
 * @param {SceneLayer} layer
 * @param {LayerRows | undefined} rows
 * @param {number} head
 * @param {boolean} [changed] whether it is another head now than was measured
 * @returns {string} empty if nothing says it
 */
export function headWord(layer, rows, head, changed = false) {
  const verdict = /** @type {any} */ (layer.statistics?.[head])?.verdict;
  if (verdict && !changed) return verdict;
  if (layer.attention.kind !== "position" || !rows || "prefix" in rows.query) return "";
  const map = partOf(rows.weights, head, rows.keyRows * rows.keyCols);
  const key = map.reduce((most, weight, at) => (weight > map[most] ? at : most), 0);
  const [down, right] = displacements(layer, rows.query);
  const place = [down[Math.floor(key / rows.keyCols)], right[key % rows.keyCols]].map(Math.round);
  const where = map[key] >= 0.5 ? ` ${directionWords([place[0], place[1]])}` : "";
  return `convolution${where} (by construction)`;
}

/** Images below which the word of a head may be another on more of them. */
const FEW_IMAGES = 20;

/** The number that decides on a word which no displacement does. @type {Record<string, string[]>} */
const DECIDED_BY = {
  special: ["prefix_share", "of its attention is on class and register tokens"],
  row: ["line_share", "is in the query's own row"],
  column: ["line_share", "is in the query's own column"],
  "half-plane": ["side_share", "is on one side"],
  content: ["content_share", "of its variance is between images"],
};

/**
 * Says why a head has its word, by the numbers of its report.
 * @param {Record<string, Statistic>} report
 * @param {number} images  that it was measured on
 * @returns {string}
 */
export function whyWords(report, images) {
  const { position_score: score, hard_share: share, hard_shift: shift } = report;
  const place = directionWords(/** @type {Pair} */ (shift?.value ?? [0, 0]));
  const parts = [];
  const [name, what] = DECIDED_BY[String(/** @type {any} */ (report).verdict).split(" ")[0]] ?? [];
  const decides = report[name]?.value;
  if (typeof decides === "number") parts.push(`${percent(decides)} ${what}`);
  if (Number.isFinite(score?.value ?? NaN))
    parts.push(`displacement alone explains ${percent(Math.max(Number(score?.value), 0))} of where it looks`);
  if (Number.isFinite(share?.value ?? NaN))
    parts.push(`${percent(Math.max(Number(share?.value), 0))} of its attention is at one displacement: ${place}`);
  const measured = parts.join(", and ") || "too little is known to say more";
  const why = `Why: on ${images} ${images === 1 ? "image" : "images"}, ${measured}.`;
  return images < FEW_IMAGES ? `${why} On so few images another word is possible.` : why;
}

/**
 * Says what a head does from one query.
 * @param {SceneLayer} layer
 * @param {number} head from 0
 * @param {RowNumbers} numbers
 * @returns {string}
 */
export function headSentence(layer, head, numbers) {
  const name = `Head ${head + 1} of layer ${layer.number}`;
  const prefix = layer.prefix.length
    ? ` and gives ${percent(numbers.prefixShare)} to ${prefixWords(layer.prefix)}`
    : "";
  if (Number.isNaN(numbers.entropy)) return `${name} looks at no position${prefix}`;
  if (!numbers.shift) {
    const keys = fixedText(Math.exp(numbers.entropy), 0);
    return `${name} attends to ${keys} ${keys === "1" ? "key" : "keys"} or so${prefix}`;
  }
  return `${name} looks ${lookWords(layer, numbers)}${prefix}`;
}

/**
 * Says where a head looks, and how far around.
 * @param {SceneLayer} layer
 * @param {RowNumbers} numbers
 * @returns {string} empty for a query without a place
 */
export function lookWords(layer, { shift, spread }) {
  if (!shift) return "";
  const [unit, place] = [unitOf(layer), shiftWords(shift, unitOf(layer))];
  const wide = place === AT_QUERY ? "around the query" : `on average ${place}`;
  return `${spread < NARROW ? place : wide}, spread ${fixedText(spread, 1)} ${unit}`;
}

/** @param {string[]} names @returns {string} */
function prefixWords(names) {
  return names.length === 1 ? `the ${names[0]} token` : `${names.length} prefix tokens`;
}

/** @param {number} share @returns {string} */
export function percent(share) {
  return Number.isNaN(share) ? "–" : `${(100 * share).toFixed(share > 0 && share < 0.1 ? 1 : 0)} %`;
}

/**
 * Says a number of a head report, or its mean shift, with standard errors.
 * @param {Statistic | undefined} statistic
 * @param {string} unit of shares "%", which the report has between 0 and 1
 * @returns {string}
 */
export function statisticText(statistic, unit) {
  const { value, error } = statistic ?? {};
  if (Array.isArray(value) && value.every(Number.isFinite))
    return shiftWords(/** @type {Pair} */ (value), unit, 2, [error ?? []].flat());
  if (typeof value !== "number") return "–";
  const times = unit === "%" ? 100 : 1;
  return `${withError(times * value, typeof error === "number" ? times * error : undefined)} ${unit}`.trim();
}

/** @param {number} value @param {number | null} [error] null where nothing says it @param {number} [decimals] */
const withError = (value, error, decimals) =>
  fixedText(value, decimals) + (typeof error === "number" ? ` ± ${fixedText(error, decimals)}` : "");

/**
 * Names what the maps of a scene are seen from.
 * @param {{query: Pair, prefix: number | null}} state
 * @param {string[]} prefixNames of the prefix tokens
 * @returns {string}
 */
export function queryWords({ query, prefix }, prefixNames) {
  if (prefix !== null) return `${prefixNames[prefix] ?? "prefix"} token`;
  return `row ${query[0]}, column ${query[1]}`;
}
