import assert from "node:assert/strict";
import { test } from "node:test";

import {
  belowLargest,
  colourLimits,
  displacements,
  massRadius,
  relativeScores,
  rowNumbers,
} from "../../../src/convattn/viewer/static/js/statistics.js";

/** @typedef {import("../../../src/convattn/viewer/static/js/scene.js").SceneLayer} SceneLayer */

/**
 * @param {Partial<SceneLayer>} [change]
 * @returns {SceneLayer} 5 × 7 keys, padded by one, of 3 × 5 queries
 */
function layerOf(change) {
  return /** @type {SceneLayer} */ ({
    heads: 1,
    grid: [3, 5],
    place: { first: [0, 0], step: [1, 1] },
    keys: { grid: [5, 7], first: [-1, -1], step: [1, 1] },
    prefix: [],
    ...change,
  });
}

/**
 * @param {Record<number, number>} weights by key
 * @param {{query?: [number, number] | {prefix: number}, size?: [number, number], prefix?: number[]}} [how]
 */
function rowsOf(weights, { query = [1, 2], size = [5, 7], prefix = [] } = {}) {
  const made = new Float32Array(size[0] * size[1]);
  for (const [key, weight] of Object.entries(weights)) made[Number(key)] = weight;
  const rows = { layer: 0, query, heads: 1, keyRows: size[0], keyCols: size[1], weights: made };
  return { ...rows, prefix: Float32Array.from(prefix) };
}

test("displacements are counted from the query in steps of the keys", () => {
  const [down, across] = displacements(layerOf(), [1, 2]);
  assert.deepEqual([...down], [-2, -1, 0, 1, 2]);
  assert.deepEqual([...across], [-3, -2, -1, 0, 1, 2, 3]);
  const strided = layerOf({
    place: { first: [0, 0], step: [2, 2] },
    keys: { grid: [5, 7], first: [-1, -1], step: [2, 2] },
  });
  assert.deepEqual([...displacements(strided, [0, 0])[0]], [-0.5, 0.5, 1.5, 2.5, 3.5]);
});

test("a hard head has the shift of its key and no spread", () => {
  const found = rowNumbers(layerOf(), rowsOf({ [1 * 7 + 2]: 1 }), 0);
  assert.deepEqual(found.shift, [-1, -1]);
  assert.deepEqual([found.spread, found.entropy, found.hardShare, found.prefixShare], [0, 0, 1, 0]);
});

test("two keys: mean, spread and entropy by hand; a signed weight counts by its size", () => {
  for (const sign of [1, -1]) {
    const found = rowNumbers(layerOf(), rowsOf({ [2 * 7 + 3]: 0.5, [2 * 7 + 5]: sign * 0.5 }), 0);
    assert.deepEqual(found.shift, [0, 1]);
    assert.equal(found.spread, 1);
    assert.ok(Math.abs(found.entropy - Math.log(2)) < 1e-15);
    assert.equal(found.hardShare, 0.5);
  }
});

test("what prefix tokens get is a share, and does not bend the numbers of positions", () => {
  const found = rowNumbers(
    layerOf({ prefix: ["class", "register 1"] }),
    rowsOf({ 17: 0.5 }, { prefix: [0.25, 0.25] }),
    0,
  );
  assert.deepEqual(found.shift, [0, 0]);
  assert.deepEqual([found.entropy, found.prefixShare, found.hardShare], [0, 0.5, 0.5]);
  assert.deepEqual(found.prefix, [0.25, 0.25]);
});

test("a query without a place has no shift; a row without weight has no numbers", () => {
  const token = rowNumbers(layerOf(), rowsOf({ 3: 0.5, 4: 0.5 }, { query: { prefix: 0 } }), 0);
  assert.equal(token.shift, null);
  assert.ok(Number.isNaN(token.spread) && token.entropy > 0.69);
  const nothing = rowNumbers(layerOf(), rowsOf({}), 0);
  assert.equal(nothing.shift, null);
  assert.ok(Number.isNaN(nothing.entropy));
});

test("keys that a query cannot look at do not count", () => {
  const found = rowNumbers(layerOf(), rowsOf({ 0: NaN, 17: 1, 34: NaN }), 0);
  assert.deepEqual([found.shift, found.hardShare], [[0, 0], 1]);
});

test("scores of weights are their logarithms below the largest", () => {
  const made = relativeScores(Float32Array.of(0.5, 0.25, 0, NaN, 1, 1, 1, 1), 2);
  assert.deepEqual([made[0], made[1], made[2]], [0, Math.fround(Math.log(0.5)), -Infinity]);
  assert.ok(Number.isNaN(made[3]));
  assert.deepEqual([...made.subarray(4)], [0, 0, 0, 0]);
  assert.deepEqual([...belowLargest(Float32Array.of(3, 1, -Infinity, 7, 7, 2), 2)], [0, -2, -Infinity, 0, 0, -5]);
});

test("limits of colours: own, common, fixed", () => {
  const [one, other] = [Float32Array.of(0, 0.25, NaN), Float32Array.of(0, 0.5, 0.5)];
  const all = () => [one, other];
  assert.deepEqual(colourLimits("own", "weights", one, all), [0, 0.25]);
  assert.deepEqual(colourLimits("common", "weights", one, all), [0, 0.5]);
  assert.deepEqual(colourLimits(0.125, "weights", one, all), [0, 0.125]);
  assert.deepEqual(colourLimits("own", "weights", Float32Array.of(-0.5, 0.25), all), [-0.5, 0.25]);
  assert.deepEqual(colourLimits("own", "weights", Float32Array.of(0, 0), all), [0, 1]);
});

test("limits of scores end at the largest, and a common scale ends where weights are too small to see", () => {
  const [one, other] = [Float32Array.of(0, -3, -Infinity), Float32Array.of(0, -500)];
  const all = () => [one, other];
  assert.deepEqual(colourLimits("own", "scores", one, all), [-3, 0]);
  assert.deepEqual(colourLimits("own", "scores", other, all), [-500, 0]);
  assert.deepEqual(colourLimits("common", "scores", one, all), [-10, 0]);
  assert.deepEqual(
    colourLimits("common", "scores", one, () => [one]),
    [-3, 0],
  );
  assert.deepEqual(colourLimits(5, "scores", one, all), [-5, 0]);
});

test("circles of mass: what a Gaussian holds within them, integrated", () => {
  const alpha = 0.7;
  for (const share of [0.5, 0.9]) {
    const radius = massRadius(alpha, share);
    const cells = 2000;
    let held = 0;
    for (let cell = 0; cell < cells; cell++) {
      const r = ((cell + 0.5) / cells) * radius;
      held += 2 * alpha * r * Math.exp(-alpha * r * r) * (radius / cells);
    }
    assert.ok(Math.abs(held - share) < 1e-6, `${held}`); // the midpoint rule with 2000 cells errs by less
  }
});
