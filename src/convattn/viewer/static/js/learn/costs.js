import { attend } from "../attention.js";
import { sumOfAxes } from "../scores.js";
import { attendHeads, layerOfHeads } from "./heads.js";
import { convolvePicture, largestDifference, namedTaps } from "./kernels.js";

// Three ways to compute, timed where the page runs.

const TIMED_SHARPNESS = 1;
const TIMED_SAMPLES = 5;

/** @typedef {import("./kernels.js").Picture} Picture */
/** @typedef {{side: number, milliseconds: Record<Way, number | null>, difference: number | null}} Measured */
/** @typedef {"all pairs" | "separable heads" | "convolution 3 × 3"} Way */

/** @param {number} side @returns {Picture} */
function noisePicture(side) {
  let seed = 1;
  return {
    rows: side,
    cols: side,
    data: Float32Array.from({ length: side * side }, () => (seed = (seed * 16807) % 2147483647) / 2147483647),
  };
}

/**
 * The heads' output from a weight for each pair of pixels.
 * @param {Picture} picture
 * @returns {Picture}
 */
export function attendAllPairs(picture) {
  const heads = namedTaps("Blur");
  const layer = layerOfHeads(picture, heads, TIMED_SHARPNESS);
  const scores = sumOfAxes(/** @type {[Float32Array, Float32Array]} */ (layer.axes), heads.length);
  return attend({ ...picture, channels: 1 }, { ...layer, axes: null, scores });
}

/**
 * Times three ways on pictures of several sizes; all pairs only while they are few. Both ways of attention must agree.
 * @param {(measured: Measured) => void} tell  after each size
 * @param {() => Promise<void>} pause  lets the page breathe
 * @param {number[]} sides
 */
export async function measureCosts(tell, pause, sides = [8, 16, 32, 64]) {
  for (const side of sides) {
    const picture = noisePicture(side);
    /** @type {Record<Way, (() => Picture) | null>} */
    const ways = {
      "all pairs": side <= 32 ? () => attendAllPairs(picture) : null,
      "separable heads": () => attendHeads(picture, namedTaps("Blur"), TIMED_SHARPNESS),
      "convolution 3 × 3": () => convolvePicture(picture, namedTaps("Blur")),
    };
    const milliseconds = /** @type {Record<Way, number | null>} */ ({});
    for (const [way, run] of /** @type {[Way, (() => Picture) | null][]} */ (Object.entries(ways))) {
      await pause();
      milliseconds[way] = run && (await medianTime(run, pause));
    }
    const difference =
      ways["all pairs"] &&
      largestDifference(ways["all pairs"](), /** @type {() => Picture} */ (ways["separable heads"])());
    tell({ side, milliseconds, difference });
  }
}

/**
 * The median of several samples, each of as many calls as take some milliseconds, after a call that is not counted.
 * @param {() => unknown} run
 * @param {() => Promise<void>} pause
 */
async function medianTime(run, pause) {
  run();
  const samples = [];
  for (let sample = 0; sample < TIMED_SAMPLES; sample++) {
    await pause();
    const start = performance.now();
    let calls = 0;
    do {
      run();
      calls += 1;
    } while (performance.now() - start < 8);
    samples.push((performance.now() - start) / calls);
  }
  return samples.sort((one, other) => one - other)[(TIMED_SAMPLES - 1) / 2];
}
