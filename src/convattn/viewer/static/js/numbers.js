/** @import { Numbers } from "./scene.js" */

/** Keeps a number between two limits. @param {number} value @param {number} low @param {number} high */
export const clamp = (value, low, high) => Math.min(Math.max(value, low), high);

/**
 * Returns one of the parts, of equal size, that numbers lie in one after the other; it is a view.
 * @template {Numbers} T
 * @param {T} numbers
 * @param {number} part
 * @param {number} size
 * @returns {T}
 */
export const partOf = (numbers, part, size) => /** @type {T} */ (numbers.subarray(part * size, (part + 1) * size));

/**
 * Adds a matrix times a vector: to[o] += Σ_c matrix[o, c] from[c]. Four outputs at a time, because a processor adds to
 * four sums in the time that it adds to one.
 * @param {Float32Array} matrix  (height, width)
 * @param {number} width
 * @param {number} height
 * @param {Float32Array | Float64Array} from
 * @param {number} start  where the vector starts
 * @param {Float32Array | Float64Array} to
 * @param {number} at  where the result starts
 */
export function addProduct(matrix, width, height, from, start, to, at) {
  let o = 0;
  for (; o + 4 <= height; o += 4) {
    const first = o * width;
    const second = first + width;
    const third = second + width;
    const fourth = third + width;
    let [a, b, c, d] = [0, 0, 0, 0];
    for (let i = 0; i < width; i++) {
      const x = from[start + i];
      a += matrix[first + i] * x;
      b += matrix[second + i] * x;
      c += matrix[third + i] * x;
      d += matrix[fourth + i] * x;
    }
    to[at + o] += a;
    to[at + o + 1] += b;
    to[at + o + 2] += c;
    to[at + o + 3] += d;
  }
  for (; o < height; o++) {
    let sum = 0;
    for (let i = 0; i < width; i++) sum += matrix[o * width + i] * from[start + i];
    to[at + o] += sum;
  }
}
