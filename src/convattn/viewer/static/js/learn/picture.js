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
  const scale = Math.max(1, Math.max(shape[0], shape[1]) / LARGEST_SIDE);
  const [rows, cols] = [Math.round(shape[0] / scale), Math.round(shape[1] / scale)];
  const out = new Float32Array(rows * cols);
  const between = (/** @type {number} */ at, /** @type {number} */ count, /** @type {number} */ size) =>
    Math.floor((at * size) / count);
  for (let at = 0; at < out.length; at++) {
    const [row, col] = [Math.floor(at / cols), at % cols];
    let [sum, count] = [0, 0];
    for (let i = between(row, rows, shape[0]); i < between(row + 1, rows, shape[0]); i++) {
      for (let j = between(col, cols, shape[1]); j < between(col + 1, cols, shape[1]); j++, count++) {
        const from = (i * shape[1] + j) * 3;
        sum += 0.299 * data[from] + 0.587 * data[from + 1] + 0.114 * data[from + 2];
      }
    }
    out[at] = sum / count / 255;
  }
  return { rows, cols, data: out };
}

/** A moon above a house: edges, and soft light. @returns {Picture} */
function madePicture() {
  const side = LARGEST_SIDE;
  const data = Float32Array.from({ length: side * side }, (_, at) => {
    const [row, col] = [Math.floor(at / side), at % side];
    if ((row - 7) ** 2 + (col - 24) ** 2 < 14) return 0.95;
    if (row > 8 && row < 28 && Math.abs(col - 12) < Math.min(row - 7, 8)) return row < 16 ? 0.35 : 0.6;
    return 0.1 + (0.2 * row) / side;
  });
  return { rows: side, cols: side, data };
}

/**
 * A pixel with much to see around it, away from the border.
 * @param {Picture} picture
 * @returns {[number, number]}
 */
export function tourQuery({ rows, cols, data }) {
  /** @type {[number, number]} */
  let best = [Math.floor(rows / 2), Math.floor(cols / 2)];
  let most = -1;
  for (let row = 4; row < rows - 4; row++) {
    for (let col = 4; col < cols - 4; col++) {
      let [sum, squares] = [0, 0];
      for (let i = row - 2; i <= row + 2; i++) {
        for (let j = col - 2; j <= col + 2; j++) {
          sum += data[i * cols + j];
          squares += data[i * cols + j] ** 2;
        }
      }
      const spread = squares / 25 - (sum / 25) ** 2;
      if (spread > most) [best, most] = [[row, col], spread];
    }
  }
  return best;
}
