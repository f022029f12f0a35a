// What a head does, in plain words: for screen readers, titles and captions.

import { fixedText } from "../draw.js";

/** @typedef {import("../scene.js").SceneLayer} SceneLayer */
/** @typedef {import("../scene.js").Pair} Pair */
/** @typedef {import("../statistics.js").RowNumbers} RowNumbers */

/**
 * @param {SceneLayer} layer
 * @returns {"pixels" | "cells"} the unit of displacements
 */
export function unitOf(layer) {
  return layer.keys.step[0] === 1 && layer.keys.step[1] === 1 ? "pixels" : "cells";
}

/**
 * Says a displacement: "1.0 pixels up and 2.0 to the left".
 * @param {Pair} shift down and right
 * @param {string} unit
 * @param {number} [decimals]
 * @returns {string}
 */
export function shiftWords(shift, unit, decimals = 1) {
  /** @type {[number, string, string][]} */
  const parts = [
    [shift[0], "up", "down"],
    [shift[1], "to the left", "to the right"],
  ];
  const said = parts
    .filter(([size]) => Number(Math.abs(size).toFixed(decimals)) > 0)
    .map(([size, before, after]) => ({ size: Math.abs(size).toFixed(decimals), way: size < 0 ? before : after }));
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
  const prefix = layer.prefix.length ? `, ${percent(numbers.prefixShare)} of it on ${prefixWords(layer.prefix)}` : "";
  if (!numbers.shift) return `${name} attends to ${fixedText(Math.exp(numbers.entropy), 0)} keys or so${prefix}`;
  const unit = unitOf(layer);
  return `${name} looks ${shiftWords(numbers.shift, unit)}, spread ${fixedText(numbers.spread, 1)} ${unit}${prefix}`;
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
 * Names what the maps of a scene are seen from.
 * @param {{query: Pair, prefix: number | null}} state
 * @param {string[]} prefixNames of the prefix tokens
 * @returns {string}
 */
export function queryWords({ query, prefix }, prefixNames) {
  if (prefix !== null) return `${prefixNames[prefix] ?? "prefix"} token`;
  return `row ${query[0]}, column ${query[1]}`;
}
