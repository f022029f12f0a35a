// Kernels of the tour, their taps, and convolution as it is defined. Offsets are [row, column], key minus query.

import { attend, padFeatures, positionRow, quadraticAxes, softmaxOf, sumOfAxes, tableShape } from "../attention.js";

/** @import { LayerGeometry, LiveLayer } from "../attention.js" */
/** @import { Padding } from "../scene.js" */

/** @typedef {{rows: number, cols: number, data: Float32Array}} Picture  one channel, values from 0 to 1 */
/** @typedef {{offset: [number, number], weight: number}} Tap */
/** @typedef {Padding["mode"]} PadMode */

/**
 * 3 × 3 kernels to choose from, row by row: whole numbers over a common divisor.
 * @type {Record<string, {counts: number[], divisor: number}>}
 */
export const KERNELS = {
  Blur: { counts: [1, 2, 1, 2, 4, 2, 1, 2, 1], divisor: 16 },
  Sharpen: { counts: [-1, -2, -1, -2, 28, -2, -1, -2, -1], divisor: 16 },
  Outline: { counts: [-1, -1, -1, -1, 8, -1, -1, -1, -1], divisor: 8 },
  Slope: { counts: [-1, 0, 1, -2, 0, 2, -1, 0, 1], divisor: 8 },
};

/** The taps of a named kernel. @param {string} name @returns {Tap[]} */
export function namedTaps(name) {
  const { counts, divisor } = KERNELS[name];
  return tapsOf(counts.map((count) => count / divisor));
}

/** Numbers without a pattern, as training leaves them; a kernel of any size up to 5 takes the first ones. */
const UNEVEN = [
  31, -12, 7, 18, -25, 9, -33, 14, 22, -6, 27, -17, 11, -29, 5, 20, -8, 35, -15, 3, 24, -21, 13, -10, 16,
].map((tap) => tap / 100);

/**
 * The offset of a cell from the middle of a square, or from the cell before it.
 * @param {number} at  row by row
 * @param {number} side
 * @returns {[number, number]}
 */
export function offsetIn(at, side) {
  const middle = Math.floor((side - 1) / 2);
  return [Math.floor(at / side) - middle, (at % side) - middle];
}

/**
 * The taps of a square kernel: the middle tap of an odd kernel is at offset 0, of an even one the tap before the middle.
 * @param {number[]} kernel
 * @returns {Tap[]}
 */
export function tapsOf(kernel) {
  const size = Math.round(Math.sqrt(kernel.length));
  return kernel.map((weight, at) => ({ offset: offsetIn(at, size), weight: Math.fround(weight) }));
}

/**
 * A kernel of any size: "blur" from binomial numbers, "uneven" without a pattern.
 * @param {string} kind
 * @param {number} size  from 1 to 5
 * @returns {number[]}
 */
export function kernelOfSize(kind, size) {
  if (kind === "uneven") return UNEVEN.slice(0, size * size);
  let line = [1];
  while (line.length < size) line = [...line, 0].map((value, index) => value + (index ? line[index - 1] : 0));
  const sum = 4 ** (size - 1);
  return line.flatMap((row) => line.map((col) => (row * col) / sum));
}

/** @param {number} width on every side @param {PadMode} mode @returns {Padding} */
export function paddingOf(width, mode) {
  /** @type {[number, number]} */
  const sides = [width, width];
  return { pairs: [sides, sides], mode, spread: [1, 1] };
}

/**
 * Continues a picture by some pixels on every side.
 * @param {Picture} picture
 * @param {number} width
 * @param {PadMode} mode
 * @returns {Picture}
 */
export function padPicture(picture, width, mode) {
  return padFeatures({ ...picture, channels: 1 }, paddingOf(width, mode));
}

/**
 * Convolution by its definition, y[q] = Σ_t W[t] x[q + t], summed in float64.
 * @param {Picture} picture
 * @param {Tap[]} taps
 * @param {PadMode} padding
 * @returns {Picture}
 */
export function convolvePicture(picture, taps, padding = "replicate") {
  const reach = taps.reduce((most, { offset }) => Math.max(most, Math.abs(offset[0]), Math.abs(offset[1])), 0);
  const { data, cols } = padPicture(picture, reach, padding);
  const out = new Float32Array(picture.rows * picture.cols);
  const steps = taps.map(({ offset }) => (offset[0] + reach) * cols + offset[1] + reach);
  for (let row = 0, at = 0; row < picture.rows; row++) {
    for (let col = 0; col < picture.cols; col++, at++) {
      let sum = 0;
      for (let tap = 0; tap < taps.length; tap++) sum += taps[tap].weight * data[row * cols + col + steps[tap]];
      out[at] = sum;
    }
  }
  return { ...picture, data: out };
}

/**
 * The square around a pixel; NaN outside the picture.
 * @param {Picture} picture
 * @param {[number, number]} pixel
 * @param {number} reach  the square is 2 reach + 1 wide
 */
export function cutAround({ rows, cols, data }, [row, col], reach) {
  const width = 2 * reach + 1;
  return Float32Array.from({ length: width * width }, (_, at) => {
    const [down, right] = offsetIn(at, width);
    const [i, j] = [row + down, col + right];
    return i >= 0 && i < rows && j >= 0 && j < cols ? data[i * cols + j] : NaN;
  });
}

/** @param {ArrayLike<number>} values @returns {number} the largest absolute value */
export function largestSize(values) {
  let most = 0;
  for (let at = 0; at < values.length; at++) most = Math.max(most, Math.abs(values[at]));
  return most;
}

/** @param {Picture} one @param {Picture} other @returns {number} */
export function largestDifference(one, other) {
  return largestSize(one.data.map((value, at) => value - other.data[at]));
}

/**
 * The taps that fewer one-pixel heads do best with, for the largest error over all images: those of largest weight.
 * @param {Tap[]} taps
 * @param {number} heads
 * @returns {{kept: Tap[], lost: number}}  lost: Σ|W| of the others, the largest error on pixels in ±1
 */
export function bestTaps(taps, heads) {
  const order = [...taps].sort((one, other) => Math.abs(other.weight) - Math.abs(one.weight));
  const kept = new Set(order.slice(0, heads));
  return {
    kept: taps.filter((tap) => kept.has(tap)),
    lost: order.slice(heads).reduce((sum, tap) => sum + Math.abs(tap.weight), 0),
  };
}

// The attention layer of the tour: quadratic heads on one channel, each with a number for its values.

/** @typedef {{width: number, mode: PadMode}} KeyPadding */

/** @type {KeyPadding} */
const UNPADDED = { width: 0, mode: "zeros" };

/**
 * A layer with a head for each tap, centred on it, with the tap's weight as its value.
 * @param {Picture} picture
 * @param {Tap[]} heads
 * @param {number} sharpness  α
 * @param {KeyPadding} [padding]  of the keys
 * @returns {LiveLayer}
 */
function layerOfHeads({ rows, cols }, heads, sharpness, { width, mode } = UNPADDED) {
  const geometry = /** @type {LayerGeometry} */ ({
    keys: [rows + 2 * width, cols + 2 * width],
    grid: [rows, cols],
    first: [width, width],
    stride: [1, 1],
  });
  const centres = heads.flatMap(({ offset }) => offset);
  return {
    heads: heads.length,
    geometry,
    scores: new Float32Array(0),
    axes: quadraticAxes(
      centres,
      heads.map(() => sharpness),
      tableShape(geometry),
    ),
    values: Float32Array.from(heads, ({ weight }) => weight),
    outputs: 1,
    inputs: 1,
    groups: 1,
    bias: null,
    padding: paddingOf(width, mode),
  };
}

/**
 * The output of the heads for every query: y[q] = Σ_h W_h Σ_k A_h[q, k] x[k].
 * @param {Picture} picture
 * @param {Tap[]} heads
 * @param {number} sharpness
 * @param {KeyPadding} [padding]
 * @returns {Picture}
 */
export function attendHeads(picture, heads, sharpness, padding = UNPADDED) {
  return attend({ ...picture, channels: 1 }, layerOfHeads(picture, heads, sharpness, padding));
}

/**
 * Where one head looks from a query.
 * @param {Picture} picture
 * @param {[number, number]} offset  of its centre
 * @param {number} sharpness
 * @param {[number, number]} query
 * @param {KeyPadding} [padding]
 * @returns {Picture}  a weight for every key
 */
export function headMap(picture, offset, sharpness, query, padding = UNPADDED) {
  const { geometry, axes } = layerOfHeads(picture, [{ offset, weight: 1 }], sharpness, padding);
  const scores = sumOfAxes(/** @type {[Float32Array, Float32Array]} */ (axes), 1);
  return { rows: geometry.keys[0], cols: geometry.keys[1], data: positionRow(geometry, scores, 1, query) };
}

/** What the certificate of a conversion promises, and the kernel that soft heads make. */

/** Sharpness of one-pixel heads, at which all other weights are exactly zero. */
export const HARD = 800;

/**
 * Bounds the weight that a head centred on a pixel gives to all others: ε(α) = θ(e^−α)² − 1, θ(x) = 1 + 2 Σ x^(m²).
 * @param {number} sharpness  α > 0
 * @param {number} dims
 * @returns {number}
 */
export function offCentreMass(sharpness, dims = 2) {
  const small = sharpness < Math.PI; // the identity of Jacobi: the other sum converges where this one is slow
  const rate = small ? Math.PI ** 2 / sharpness : sharpness;
  let tail = 0;
  for (let step = 9; step > 0; step--) tail += Math.exp(-rate * step * step);
  const log = Math.log1p(2 * tail) + (small ? Math.log(Math.PI / sharpness) / 2 : 0);
  return Math.expm1(Math.min(dims * log, 700));
}

/**
 * Bounds the error of quadratic heads on the taps of a kernel: 2 ε(α) · max|x| · Σ|W|.
 * @param {number} sharpness
 * @param {Tap[]} taps
 * @param {number} largest  max|x|
 */
export function certifiedError(sharpness, taps, largest = 1) {
  const leak = Math.exp(-Math.fround(sharpness)) < 7.1e-46 ? 0 : Math.min(1, offCentreMass(sharpness));
  return 2 * leak * largest * taps.reduce((sum, { weight }) => sum + Math.abs(weight), 0);
}

/**
 * The convolution that quadratic heads compute away from borders: K[δ] = Σ_h W_h g_h(δ) / Σ g_h.
 * @param {Tap[]} heads
 * @param {number} sharpness
 * @param {number} reach  the window is −reach … reach
 * @returns {Tap[]}
 */
export function interiorKernel(heads, sharpness, reach) {
  const size = 2 * reach + 1;
  const sums = new Float64Array(size * size);
  for (const { offset, weight } of heads) {
    const axes = offset.map((centre) =>
      softmaxOf(Array.from({ length: size }, (_, at) => -sharpness * (at - reach - centre) ** 2)),
    );
    for (let at = 0; at < sums.length; at++) sums[at] += weight * axes[0][Math.floor(at / size)] * axes[1][at % size];
  }
  return Array.from(sums, (weight, at) => ({ offset: offsetIn(at, size), weight }));
}
