import assert from "node:assert/strict";
import test from "node:test";

import {
  HARD,
  certifiedError,
  interiorKernel,
  offCentreMass,
  attendHeads,
  headMap,
  KERNELS,
  bestTaps,
  convolvePicture,
  cutAround,
  kernelOfSize,
  largestDifference,
  namedTaps,
  padPicture,
  tapsOf,
} from "../../../src/convattn/viewer/static/js/learn/kernels.js";
import {
  compareEncodings,
  fitSoftmax,
  solvePositive,
  targetMap,
} from "../../../src/convattn/viewer/static/js/learn/step-encodings.js";
import { attentionOfPixel, barsAt, pixelVectors } from "../../../src/convattn/viewer/static/js/learn/step-attention.js";
import { layKernels } from "../../../src/convattn/viewer/static/js/learn/step-measured.js";
import { tourPicture, tourQuery } from "../../../src/convattn/viewer/static/js/learn/learn.js";
import { bordersApart } from "../../../src/convattn/viewer/static/js/learn/step-borders.js";
import { float32Floor } from "../../../src/convattn/viewer/static/js/learn/step-sharpness.js";
import { differenceText, powerText } from "../../../src/convattn/viewer/static/js/learn/view.js";

const PICTURE = noise(13, 17);
const SHARPNESSES = [0.1, 0.3, 1, 2, 3, 3.2, 5, 8, 12, 16, 20, 40, 100];

/** Random pixels from 0 to 1. @param {number} rows @param {number} cols */
function noise(rows, cols) {
  let seed = 7;
  const data = Float32Array.from({ length: rows * cols }, () => (seed = (seed * 16807) % 2147483647) / 2147483647);
  return { rows, cols, data };
}

const HALF_UNIT = 2 ** -24; // what rounding to float32 changes at most, relative to a number
const SUMMED = 500 * 2 ** -53; // what a float64 sum of up to 500 numbers loses, relative to the sum of their sizes

/** @param {number} value @param {number} expected @param {number} [by] */
function assertNear(value, expected, by = SUMMED) {
  assert.ok(Math.abs(value - expected) <= by, `${value} is not ${expected}`);
}

test("nine hard heads are the convolution, exactly", () => {
  for (const name of Object.keys(KERNELS)) {
    const taps = namedTaps(name);
    assert.equal(largestDifference(attendHeads(PICTURE, taps, HARD), convolvePicture(PICTURE, taps)), 0);
  }
});

test("a head that is moved makes the convolution of the moved kernel", () => {
  const taps = namedTaps("Sharpen");
  const moved = taps.map((tap, at) => (at === 2 ? { ...tap, offset: /** @type {[number, number]} */ ([-2, 2]) } : tap));
  const made = attendHeads(PICTURE, moved, HARD);
  assert.equal(largestDifference(made, convolvePicture(PICTURE, moved)), 0);
  assert.ok(largestDifference(made, convolvePicture(PICTURE, taps)) > 0.01);
});

test("the off-centre mass is the sum over the lattice", () => {
  for (const sharpness of SHARPNESSES) {
    let line = 0;
    for (let at = 40; at > 0; at--) line += 2 * Math.exp(-sharpness * at * at);
    assertNear(offCentreMass(sharpness) / (line * (2 + line)), 1);
    assertNear(offCentreMass(sharpness, 1) / line, 1);
  }
  assertNear(offCentreMass(20) / (4 * Math.exp(-20)), 1, 2 * Math.exp(-20)); // (1 + 2x)² − 1 = 4x (1 + x)
});

test("the error keeps to the bound, and to what float32 can tell apart", () => {
  for (const name of Object.keys(KERNELS)) {
    const taps = namedTaps(name);
    const wanted = convolvePicture(PICTURE, taps);
    for (const sharpness of SHARPNESSES) {
      const error = largestDifference(attendHeads(PICTURE, taps, sharpness), wanted);
      assert.ok(error <= certifiedError(sharpness, taps) + float32Floor(wanted), `${name} at ${sharpness}: ${error}`);
    }
    assert.equal(largestDifference(attendHeads(PICTURE, taps, 100), wanted), 0);
  }
  assert.equal(certifiedError(104, namedTaps("Blur")), 0);
});

test("the weights of a head add up to 1 and fall as its score does", () => {
  const { data, cols } = headMap(PICTURE, [-1, 1], 0.7, [6, 6]);
  assertNear(
    data.reduce((sum, value) => sum + value, 0),
    1,
    HALF_UNIT + SUMMED,
  );
  const centre = 5 * cols + 7;
  assertNear(data[centre + 1] / data[centre], Math.exp(-0.7), 2 * HALF_UNIT);
  assertNear(data[centre + cols + 1] / data[centre], Math.exp(-1.4), 2 * HALF_UNIT);
});

test("hard heads equal a convolution with any border", () => {
  const taps = namedTaps("Outline");
  assert.equal(largestDifference(attendHeads(PICTURE, taps, HARD), convolvePicture(PICTURE, taps, "replicate")), 0);
  for (const mode of /** @type {const} */ (["zeros", "reflect", "circular"])) {
    const made = attendHeads(PICTURE, taps, HARD, { width: 1, mode });
    assert.equal(largestDifference(made, convolvePicture(PICTURE, taps, mode)), 0, mode);
    assert.ok(largestDifference(made, convolvePicture(PICTURE, taps, "replicate")) > 0.01);
  }
});

test("soft heads are the convolution of their own kernel, but at the border", () => {
  const taps = namedTaps("Blur");
  const large = noise(24, 24);
  const kernel = interiorKernel(taps, 1, 6);
  assertNear(
    kernel.reduce((sum, tap) => sum + tap.weight, 0),
    1,
  );
  const [border, inside] = bordersApart(convolvePicture(large, kernel), attendHeads(large, taps, 1));
  assert.ok(border > 0.01, `${border}`);
  assertNear(inside, 0, HALF_UNIT); // two outputs below 1, each rounded
});

test("padding continues the picture", () => {
  const row = { rows: 1, cols: 3, data: Float32Array.of(1, 2, 3) };
  const middle = (/** @type {import("../../../src/convattn/viewer/static/js/learn/kernels.js").PadMode} */ mode) => [
    ...padPicture({ rows: 3, cols: 3, data: Float32Array.of(1, 2, 3, 1, 2, 3, 1, 2, 3) }, 1, mode).data.slice(5, 10),
  ];
  assert.deepEqual(middle("zeros"), [0, 1, 2, 3, 0]);
  assert.deepEqual(middle("reflect"), [2, 1, 2, 3, 2]);
  assert.deepEqual(middle("circular"), [3, 1, 2, 3, 1]);
  assert.deepEqual(middle("replicate"), [1, 1, 2, 3, 3]);
  assert.deepEqual([...cutAround(row, [0, 0], 1)], [NaN, NaN, NaN, NaN, 1, 2, NaN, NaN, NaN]);
});

test("a kernel of K × K taps needs K² heads", () => {
  for (const kind of ["uneven", "blur"]) {
    for (const size of [1, 2, 3, 4, 5]) {
      const taps = tapsOf(kernelOfSize(kind, size));
      assert.equal(taps.length, size ** 2);
      const wanted = convolvePicture(PICTURE, taps);
      const rounding = 2 * HALF_UNIT * bestTaps(taps, 0).lost; // of both outputs, at most Σ|W|
      for (let heads = 1; heads <= taps.length; heads++) {
        const { kept, lost } = bestTaps(taps, heads);
        const error = largestDifference(attendHeads(PICTURE, kept, HARD), wanted);
        assert.ok(
          error <= lost + rounding && (heads === taps.length ? error === 0 : error > 0),
          `${size}, ${heads}: ${error}`,
        );
      }
    }
  }
  assert.deepEqual(
    tapsOf([1, 2, 3, 4]).map(({ offset }) => offset.join()),
    ["0,0", "0,1", "1,0", "1,1"],
  );
  assertNear(
    kernelOfSize("blur", 4).reduce((sum, tap) => sum + tap, 0),
    1,
  );
});

test("no choice of as many taps loses less, and the worst picture reaches what is lost", () => {
  const taps = tapsOf(kernelOfSize("uneven", 3));
  for (let choice = 0; choice < 512; choice++) {
    const heads = taps.filter((_, at) => (choice >> at) & 1).length;
    const lost = taps.reduce((sum, { weight }, at) => ((choice >> at) & 1 ? sum : sum + Math.abs(weight)), 0);
    assert.ok(bestTaps(taps, heads).lost <= lost + SUMMED * bestTaps(taps, 0).lost);
  }
  const { kept, lost } = bestTaps(taps, 5);
  const worst = { rows: 3, cols: 3, data: Float32Array.from(taps, ({ weight }) => Math.sign(weight)) };
  const apart = convolvePicture(worst, taps).data[4] - attendHeads(worst, kept, HARD).data[4];
  assertNear(apart, lost, 2 * HALF_UNIT * bestTaps(taps, 0).lost);
});

test("encodings that can reach a target do, the others lose what a product must lose", () => {
  const spot = Object.fromEntries(compareEncodings([-2.3, 3.1], "a spot", 2).map((one) => [one.name, one.overlap]));
  const unseen = Math.sqrt(1e-9) / 2; // Pinsker's bound, where the fit stops
  for (const name of ["Quadratic", "Generalised quadratic", "Learned table"]) assertNear(spot[name], 1, unseen);
  assert.ok(spot.Sinusoidal > 0.999 && spot.Sinusoidal < 1);
  const stripe = compareEncodings([-2, 3], "a slanted stripe", 8);
  const target = targetMap([-2, 3], "a slanted stripe");
  const sums = (/** @type {Float64Array} */ map, /** @type {0 | 1} */ axis) => {
    const out = new Float64Array(15);
    map.forEach((value, at) => (out[axis ? at % 15 : Math.floor(at / 15)] += value));
    return out;
  };
  for (const { name, map, additive, overlap } of stripe) {
    assertNear(
      map.reduce((sum, value) => sum + value, 0),
      1,
    );
    const [rows, cols] = [sums(map, 0), sums(map, 1)];
    const apart = Math.max(...map.map((value, at) => Math.abs(value - rows[Math.floor(at / 15)] * cols[at % 15])));
    assert.equal(apart <= SUMMED, additive, name);
    assert.ok(additive ? overlap < 0.7 : overlap > 0.7, `${name} ${overlap}`);
  }
  const axial = stripe[3].map;
  assertNear(Math.max(...sums(axial, 0).map((value, at) => Math.abs(value - sums(target, 0)[at]))), 0);
});

test("one wave repeats itself every 2π pixels, two do not", () => {
  const [one, two] = [1, 2].map((waves) => compareEncodings([0, -3], "a spot", waves)[4].map);
  const at = (/** @type {Float64Array} */ map, /** @type {number} */ col) => map[7 * 15 + 7 + col];
  assert.ok(at(one, 3) > 0.5 * at(one, -3));
  assert.ok(at(two, 3) < 1e-6 * at(two, -3));
});

test("the fit finds the least divergence", () => {
  const feature = [0, 1, 2, 3];
  const scores = feature.map((value) => Math.exp(0.8 * value));
  const target = scores.map((value) => value / scores.reduce((sum, other) => sum + other, 0));
  fitSoftmax([feature], target).forEach((value, at) => assertNear(value, target[at], 1e-5));
  solvePositive(
    [
      [2, 1],
      [1, 3],
    ],
    [4, 7],
  ).forEach((value, at) => assertNear(value, [1, 2][at]));
});

test("the tour's picture is the scene's first in grey, made smaller; there is one without", () => {
  const data = Uint8Array.from({ length: 64 * 48 * 3 }, (_, at) => (at < 64 * 24 * 3 ? 255 : 0));
  const tensors = new Map([["p", { dtype: "U8", shape: [64, 48, 3], data }]]);
  const image = { name: "a", label: null, picture: "p" };
  const scene = { schema: /** @type {const} */ (1), title: "", images: [image], networks: [], tensors };
  const made = tourPicture(scene);
  assert.deepEqual([made.rows, made.cols], [32, 24]);
  assertNear(made.data[0], 1, 4 * HALF_UNIT); // four pixels are added up in float32
  assert.equal(made.data[made.data.length - 1], 0);
  const other = tourPicture({ ...scene, images: [] });
  assert.deepEqual([other.rows, other.cols], [32, 32]);
  assert.ok(other.data.every((value) => value >= 0 && value <= 1));
  tensors.set("p", { dtype: "U8", shape: [16, 192, 3], data }); // as wide, it would have two rows
  assert.deepEqual(tourPicture(scene), other);
  const [row, col] = tourQuery(other);
  assert.ok(row >= 4 && row < 28 && col >= 4 && col < 28);
});

test("attention of a pixel is the softmax of its scores, whose weights mix the values", () => {
  const vectors = pixelVectors(PICTURE, [5, 6]);
  for (const axis of [0, 1]) {
    const numbers = vectors.keys.map((key) => key[axis]);
    assertNear(numbers.reduce((sum, number) => sum + number, 0) / 25, 0, 1e-14); // 25 numbers below 4, twice summed
    assertNear(numbers.reduce((sum, number) => sum + number ** 2, 0) / 25, 1, 1e-14);
  }
  const { scores, powers, weights, parts, output } = attentionOfPixel(vectors, 7, false, 2);
  assertNear(scores[3], vectors.keys[7][0] * vectors.keys[3][0] + vectors.keys[7][1] * vectors.keys[3][1]);
  const sum = powers.reduce((total, power) => total + power, 0);
  weights.forEach((weight, at) => assertNear(weight, Math.exp(scores[at] / 2) / sum));
  assertNear(
    output,
    weights.reduce((total, weight, at) => total + weight * vectors.values[at], 0),
  );
  const even = attentionOfPixel(vectors, 7, false, 1e9).weights;
  even.forEach((weight) => assertNear(weight, 1 / 25, 1e-9)); // scores are below 16
  const bars = barsAt({ scores, powers, weights, parts, output }, 3);
  assertNear(bars.reduce((total, [, , , height]) => total + height, 0) / 190, output);
});

test("scores of place give one offset one weight, for every picture", () => {
  const [one, other] = [PICTURE, noise(11, 11)].map((picture) =>
    attentionOfPixel(pixelVectors(picture, [5, 5]), 12, true, 0.5),
  );
  assert.deepEqual(one.weights, other.weights);
  const most = one.weights.indexOf(Math.max(...one.weights));
  assert.equal(most, 13, "one to the right of the middle");
});

test("measured kernels are laid around a patch, and cut at the border", () => {
  const kernel = [0, 1, 0, 2, 0, 3, 0, 4, 0]; // of radius 1: above, left, right, below
  const [corner, middle] = [
    [0, 0],
    [1, 2],
  ].map(([row, col]) => [...layKernels([3, 4], [row, col], [kernel], 1)]);
  assert.deepEqual(corner, [0, 3, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0]);
  assert.deepEqual(middle, [0, 0, 1, 0, 0, 2, 0, 3, 0, 0, 4, 0]);
  assert.deepEqual([...layKernels([1, 2], [0, 0], [kernel, kernel.map((weight) => 5 - weight)], 1)], [5, 3]);
});

test("numbers are written for readers", () => {
  assert.equal(differenceText(0), "0, exactly");
  assert.equal(differenceText(6e-8), "6.0 × 10⁻⁸, rounding");
  assert.equal(differenceText(0.0123), "0.012");
  assert.equal(powerText(1.3e4), "1.3 × 10⁴");
  assert.equal(powerText(NaN), "–");
});
