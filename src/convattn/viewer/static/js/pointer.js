// Mouse, pen or finger.

/**
 * Follows a pointer over an element, from its press until it is let go.
 * @param {Element} target
 * @param {(event: PointerEvent, first: boolean) => unknown} moved  called at the press, too; if it returns false then,
 *   the pointer is not followed
 */
export function followPointer(target, moved) {
  const follow = (/** @type {Event} */ event) => {
    const pointer = /** @type {PointerEvent} */ (event);
    const first = pointer.type === "pointerdown";
    if (first ? pointer.button : !target.hasPointerCapture(pointer.pointerId)) return;
    if (moved(pointer, first) !== false && first) target.setPointerCapture(pointer.pointerId);
  };
  target.addEventListener("pointerdown", follow);
  target.addEventListener("pointermove", follow);
}

/**
 * Returns where a pointer is on an element, as shares of its height and width.
 * @param {Element} target
 * @param {PointerEvent} event
 * @returns {[number, number]}
 */
export function pointedShare(target, { clientX, clientY }) {
  const { top, left, width, height } = target.getBoundingClientRect();
  return [(clientY - top) / height, (clientX - left) / width];
}
