// Arrow keys, and those that go to the ends.

/** Steps of the arrow keys: down and right. @type {Record<string, [number, number]>} */
const ARROW_STEPS = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };

/**
 * Calls a function with the step of an arrow key, which then does nothing else.
 * @param {Element} target
 * @param {(step: [number, number], event: KeyboardEvent) => void} move
 */
export function followArrows(target, move) {
  target.addEventListener("keydown", (event) => {
    const key = /** @type {KeyboardEvent} */ (event);
    const step = ARROW_STEPS[key.key];
    if (!step) return;
    event.preventDefault();
    event.stopPropagation();
    move(step, key);
  });
}

/**
 * Returns the place that a key goes to, before it is kept within the grid: arrows, and Home, End, PageUp, PageDown to the
 * ends. The key then does nothing else.
 * @param {KeyboardEvent} event
 * @param {[number, number]} place  row and column
 * @param {number} [far]  cells that an arrow goes
 * @returns {[number, number] | undefined}
 */
export function keyTarget(event, [row, col], far = 1) {
  const step = ARROW_STEPS[event.key];
  /** @type {Record<string, [number, number]>} */
  const ends = { Home: [row, 0], End: [row, Infinity], PageUp: [0, col], PageDown: [Infinity, col] };
  /** @type {[number, number] | undefined} */
  const target = step ? [row + far * step[0], col + far * step[1]] : ends[event.key];
  if (target) event.preventDefault();
  return target;
}
