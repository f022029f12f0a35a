// The head that a page shows first.

import { partOf } from "./numbers.js";
import { rowsOf } from "./rows.js";
import { pictureShape } from "./scene.js";
import { displacements } from "./statistics.js";

/** @import { LayerRows } from "./rows.js" */
/** @import { Scene, SceneLayer, Statistic } from "./scene.js" */

/** Where the queries stand by which heads are judged, in shares of the sides of the picture. */
const JUDGED_AT = [0.25, 0.5, 0.75];

/** Tells whether the heads of a layer are the taps of a convolution. @param {SceneLayer} layer */
const isHard = ({ attention }) => attention.kind === "position" && attention.heads.encoding === "shift";

/**
 * Returns the head with the most to show: the one that displacement explains best, where a report says it; else the one
 * that gives most of its weight to one displacement. Hard heads, which did not learn where to look, come last.
 * @param {Scene} scene
 */
export function headToShow(scene) {
  const { layers } = scene.networks[0];
  const reported = layers.map(({ statistics }) => (statistics ?? []).map(scoreOf));
  const scores = reported.some((heads) => heads.length) ? reported : weightsAtOneDisplacement(scene);
  const best = { layer: 0, head: 0 };
  let most = 0;
  for (const [layer, heads] of scores.entries())
    for (const [head, score] of heads.entries()) {
      if (typeof score !== "number") continue;
      const shows = isHard(layers[layer]) ? score / 2 : score;
      if (shows > most) {
        most = shows;
        Object.assign(best, { layer, head });
      }
    }
  return best;
}

/**
 * Returns how much there is to show of a head: what displacement explains; of those alike, it is one that looks at
 * another place than its query.
 * @param {Record<string, Statistic>} report
 */
function scoreOf({ position_score: score, hard_share: share, hard_shift: shift }) {
  const elsewhere = [shift?.value ?? 0].flat().some((steps) => steps !== 0);
  return typeof score?.value === "number" ? score.value + (elsewhere ? 0.01 * Number(share?.value) : 0) : null;
}

/**
 * Returns for each layer and head the mean weight that nine queries of the first image give to one displacement, other
 * than none: a head that looks at its query shows little.
 * @param {Scene} scene
 * @returns {number[][]}
 */
function weightsAtOneDisplacement(scene) {
  const { layers } = scene.networks[0];
  const [rows, cols] = pictureShape(scene, 0);
  const sums = layers.map(({ heads }) =>
    Array.from({ length: heads }, () => /** @type {Map<string, number>} */ (new Map())),
  );
  for (const down of JUDGED_AT)
    for (const across of JUDGED_AT) {
      const query = /** @type {[number, number]} */ ([Math.floor(rows * down), Math.floor(cols * across)]);
      for (const found of rowsOf(scene, { network: 0, image: 0, query, part: "both" }))
        sums[found.layer].forEach((weights, head) => addStrongest(weights, layers[found.layer], found, head));
    }
  return sums.map((heads) => heads.map((weights) => Math.max(0, ...weights.values()) / JUDGED_AT.length ** 2));
}

/**
 * Adds the largest weight of a head to the sum of its displacement.
 * @param {Map<string, number>} sums
 * @param {SceneLayer} layer
 * @param {LayerRows} rows
 * @param {number} head
 */
function addStrongest(sums, layer, { weights, keyRows, keyCols, query }, head) {
  if ("prefix" in query) return;
  const map = partOf(weights, head, keyRows * keyCols);
  const key = map.reduce((best, weight, at) => (weight > (map[best] || 0) ? at : best), 0);
  const [down, across] = displacements(layer, query);
  const place = [down[Math.floor(key / keyCols)], across[key % keyCols]].map(Math.round);
  if (place.some((steps) => steps !== 0)) sums.set(String(place), (sums.get(String(place)) ?? 0) + map[key]);
}
