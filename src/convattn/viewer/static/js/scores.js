/**
 * Where queries and keys stand, and the scores of displacements, as `docs/theory.md` §1 defines them.
 *
 * @typedef {import("./scene.js").Pair} Pair
 *
 * @typedef {object} LayerGeometry  where queries stand among the keys
 * @property {Pair} keys  rows and columns of the padded image
 * @property {Pair} grid  rows and columns of the queries
 * @property {Pair} first  key at which query (0, 0) stands
 * @property {Pair} stride  keys from one query to the next
 */

/**
 * Returns the sizes of a score table, and its lowest displacements.
 *
 * @param {LayerGeometry} geometry
 * @returns {{lowest: Pair, size: Pair}}
 */
export function tableShape(geometry) {
  const { keys, grid, first, stride } = geometry;
  const last = (/** @type {0 | 1} */ axis) => first[axis] + stride[axis] * (grid[axis] - 1);
  return { lowest: [-last(0), -last(1)], size: [keys[0] - first[0] + last(0), keys[1] - first[1] + last(1)] };
}

/**
 * Scores −α‖δ − Δ‖² of every displacement along each axis; their sum is the score.
 *
 * @param {ArrayLike<number>} centres  Δ (heads, 2)
 * @param {ArrayLike<number>} sharpness  α (heads)
 * @param {{lowest: Pair, size: Pair}} shape
 * @returns {[Float32Array, Float32Array]}
 */
export function quadraticAxes(centres, sharpness, { lowest, size }) {
  const along = (/** @type {0 | 1} */ axis) => {
    const scores = new Float32Array(sharpness.length * size[axis]);
    for (let head = 0; head < sharpness.length; head++) {
      for (let i = 0; i < size[axis]; i++) {
        scores[head * size[axis] + i] = -sharpness[head] * (lowest[axis] + i - centres[2 * head + axis]) ** 2;
      }
    }
    return scores;
  };
  return [along(0), along(1)];
}

/**
 * Adds the scores of the axes up to a table (heads, rows, cols).
 *
 * @param {[Float32Array, Float32Array]} axes
 * @param {number} heads
 * @returns {Float32Array}
 */
export function sumOfAxes([rows, cols], heads) {
  const [down, across] = [rows.length / heads, cols.length / heads];
  const table = new Float32Array(heads * down * across);
  for (let head = 0, at = 0; head < heads; head++) {
    for (let i = 0; i < down; i++) {
      for (let j = 0; j < across; j++) table[at++] = rows[head * down + i] + cols[head * across + j];
    }
  }
  return table;
}
