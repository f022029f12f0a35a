/**
 * Returns one of the parts, of equal size, that numbers lie in one after the other; it is a view.
 * @template {import("./safetensors.js").Numbers} T
 * @param {T} numbers
 * @param {number} part
 * @param {number} size
 * @returns {T}
 */
export const partOf = (numbers, part, size) => /** @type {T} */ (numbers.subarray(part * size, (part + 1) * size));
