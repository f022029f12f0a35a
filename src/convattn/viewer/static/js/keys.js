// Arrow keys.

/** Steps of the arrow keys: down and right. @type {Record<string, [number, number]>} */
export const ARROW_STEPS = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };

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
