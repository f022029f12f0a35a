// The picture of the tour: small and grey.

/** @typedef {import("./kernels.js").Picture} Picture */

const LARGEST_SIDE = 32;

/**
 * The first picture of a scene in grey, not larger than 32 × 32; without one, a picture made here.
 * @param {import("../scene.js").Scene} scene
 * @returns {Picture}
 */
export function tourPicture(scene) {
  const found = scene.images.length ? scene.tensors.get(scene.images[0].picture) : undefined;
  if (!found || Math.min(found.shape[0], found.shape[1]) < 8) return madePicture();
  const { shape } = found;
  const data = /** @type {Uint8Array} */ (found.data);
  const scale = Math.ceil(Math.max(shape[0], shape[1]) / LARGEST_SIDE);
  const [rows, cols] = shape.map((size) => Math.floor(size / scale));
  const out = new Float32Array(rows * cols);
  for (let row = 0; row < rows * scale; row++) {
    for (let col = 0; col < cols * scale; col++) {
      const from = (row * shape[1] + col) * 3;
      const light = 0.299 * data[from] + 0.587 * data[from + 1] + 0.114 * data[from + 2];
      out[Math.floor(row / scale) * cols + Math.floor(col / scale)] += light / (255 * scale * scale);
    }
  }
  return { rows, cols, data: out };
}

/** A moon in the evening: an edge, and soft light. @returns {Picture} */
function madePicture() {
  const side = LARGEST_SIDE;
  const light = (/** @type {number} */ row, /** @type {number} */ col) =>
    (row - 12) ** 2 + (col - 18) ** 2 < 40 ? 0.95 : 0.1 + row / 80;
  const data = Float32Array.from({ length: side * side }, (_, at) => light(Math.floor(at / side), at % side));
  return { rows: side, cols: side, data };
}

/**
 * The pixel that differs most from its neighbours, away from the border.
 * @param {Picture} picture
 * @returns {[number, number]}
 */
export function tourQuery({ rows, cols, data }) {
  /** @type {[number, number]} */
  let best = [4, 4];
  let most = -1;
  for (let row = 4; row < rows - 4; row++) {
    for (let col = 4; col < cols - 4; col++) {
      const at = row * cols + col;
      const steps = [1, -1, cols, -cols].map((step) => Math.abs(data[at] - data[at + step]));
      const sum = steps.reduce((total, step) => total + step);
      if (sum > most) [best, most] = [[row, col], sum];
    }
  }
  return best;
}
