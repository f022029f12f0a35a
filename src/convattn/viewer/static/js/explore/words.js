// What a head does, in plain words: for screen readers, titles and captions.

import { fixedText } from "../draw.js";

/** @import { Pair, SceneLayer, Statistic } from "../scene.js" */
/** @import { RowNumbers } from "../statistics.js" */

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
  if (!said.length) return "at the query itself";
  const [first, ...rest] = said;
  return [`${first.size} ${unit} ${first.way}`, ...rest.map(({ size, way }) => `${size} ${way}`)].join(" and ");
}

/**
 * Says what a head does from one query.
 * @param {SceneLayer} layer
 * @param {number} layerNumber from 0
 * @param {number} head from 0
 * @param {RowNumbers} numbers
 * @returns {string}
 */
export function headSentence(layer, layerNumber, head, numbers) {
  const name = `Head ${head + 1} of layer ${layerNumber + 1}`;
  const prefix = layer.prefix.length
    ? ` and gives ${percent(numbers.prefixShare)} to ${prefixWords(layer.prefix)}`
    : "";
  if (!numbers.shift) return `${name} attends to ${fixedText(Math.exp(numbers.entropy), 0)} keys or so${prefix}`;
  return `${name} looks ${lookWords(layer, numbers)}${prefix}`;
}

/**
 * Says where a head looks, and how far around.
 * @param {SceneLayer} layer
 * @param {RowNumbers} numbers
 * @returns {string} empty for a query without a place
 */
export function lookWords(layer, { shift, spread }) {
  const unit = unitOf(layer);
  return shift ? `${shiftWords(shift, unit)}, spread ${fixedText(spread, 1)} ${unit}` : "";
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
