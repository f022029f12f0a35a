import { softmaxOf } from "../attention.js";
import { offsetIn } from "./kernels.js";

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
  const small = sharpness < Math.PI; // Jacobi's identity: the other sum converges where this one is slow
  const rate = small ? Math.PI ** 2 / sharpness : sharpness;
  let tail = 0;
  for (let step = 9; step > 0; step--) tail += Math.exp(-rate * step * step);
  const log = Math.log1p(2 * tail) + (small ? Math.log(Math.PI / sharpness) / 2 : 0);
  return Math.expm1(Math.min(dims * log, 700));
}

/**
 * Bounds the error of quadratic heads on the taps of a kernel: 2 ε(α) · max|x| · Σ|W|.
 * @param {number} sharpness
 * @param {import("./kernels.js").Tap[]} taps
 * @param {number} largest  max|x|
 */
export function certifiedError(sharpness, taps, largest = 1) {
  const leak = Math.exp(-Math.fround(sharpness)) < 7.1e-46 ? 0 : Math.min(1, offCentreMass(sharpness));
  return 2 * leak * largest * taps.reduce((sum, { weight }) => sum + Math.abs(weight), 0);
}

/**
 * The convolution that quadratic heads compute away from borders: K[δ] = Σ_h W_h g_h(δ) / Σ g_h.
 * @param {import("./kernels.js").Tap[]} heads
 * @param {number} sharpness
 * @param {number} reach  the window is −reach … reach
 * @returns {import("./kernels.js").Tap[]}
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
