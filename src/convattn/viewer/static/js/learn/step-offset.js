import { div, fill, followArrows, h, say, setProp, setProps, svg } from "../dom.js";
import { fixedText } from "../draw.js";
import { HARD, KERNELS, attendHeads, convolvePicture, cutAround, namedTaps, offsetIn } from "./kernels.js";
import {
  choice,
  comparison,
  differenceText,
  followPlace,
  numbersList,
  placeMark,
  ringMark,
  squareMark,
  windowView,
} from "./view.js";
import { clamp } from "../numbers.js";
import { nearestInside } from "../scene.js";

/** @import { Place, Step, Tour } from "./view.js" */

const OFFSET_REACH = 2; // heads can be moved this far
const OFFSET_WINDOW = 2 * OFFSET_REACH + 1;

/** @param {Place} offset */
export const offsetText = (offset) =>
  `(${offset.map((at) => (at > 0 ? "+" : "") + String(at).replace("-", "−")).join(", ")})`;

/**
 * Step 1: nine heads around a pixel, each of which can be dragged.
 * @param {Tour} tour
 * @param {Element} text
 * @returns {Step}
 */
export function offsetStep(tour, text) {
  const { picture } = tour;
  let kernel = "Blur";
  let home = namedTaps(kernel);
  let heads = [...home];
  let wanted = convolvePicture(picture, home);
  let active = 2;

  const around = windowView(OFFSET_REACH, "Around the pixel: where the heads look", "learn-touch");
  const board = windowView(OFFSET_REACH, "The kernel that the heads make", "learn-kernel");
  const strip = comparison(tour, tour.query);
  const numbers = numbersList("Convolution at the pixel", "Attention at the pixel", "Largest difference anywhere");
  const reset = h("button", { onClick: () => start(kernel) }, "Put the heads back");
  const live = /** @type {Element} */ (text.querySelector(".learn-where b"));
  const arrow = svg("line", { class: "learn-arrow" });
  const rings = heads.map((_, head) => {
    const ring = ringMark({ tabindex: 0, role: "button", onFocus: () => move(head, heads[head].offset) });
    followArrows(ring, ([down, right]) => {
      const [row, col] = heads[head].offset;
      move(head, [row + down, col + right]);
    });
    return ring;
  });
  const cells = Array.from({ length: OFFSET_WINDOW ** 2 }, (_, at) => {
    const offset = offsetIn(at, OFFSET_WINDOW);
    const text = svg("text");
    const cell = squareMark("learn-cell", offset);
    cell.append(text);
    return { offset: String(offset), cell, text };
  });
  fill(board.marks, ...cells.map(({ cell }) => cell), squareMark("learn-home", [0, 0], 3));
  around.marks.removeAttribute("aria-hidden");
  around.marks.append(arrow, ...rings);
  followPlace(around.marks, OFFSET_WINDOW, OFFSET_WINDOW, (place, first) => {
    const [row, col] = nearestInside(place, [OFFSET_WINDOW, OFFSET_WINDOW]);
    /** @type {Place} */
    const offset = [row - OFFSET_REACH, col - OFFSET_REACH];
    const found = heads.map((head) => String(head.offset)).lastIndexOf(String(offset));
    if (first && found < 0) return false;
    move(first ? found : active, offset);
    return true;
  });

  /** @param {number} head @param {Place} offset */
  function move(head, offset) {
    const [row, col] = offset.map((at) => clamp(at, -OFFSET_REACH, OFFSET_REACH));
    active = head;
    heads[head] = { ...heads[head], offset: [row, col] };
    tour.ask();
  }
  /** @param {string} name */
  function start(name) {
    [kernel, home, heads] = [name, namedTaps(name), namedTaps(name)];
    wanted = convolvePicture(picture, home);
    tour.ask();
  }
  function paint() {
    const query = strip.query();
    const made = attendHeads(picture, heads, HARD);
    const largest = differenceText(strip.show(wanted, made));
    const at = query[0] * picture.cols + query[1];
    around.gray(cutAround(picture, query, OFFSET_REACH));
    paintHeads();
    paintKernel();
    const atHome = heads.every(({ offset }, head) => String(offset) === String(home[head].offset));
    reset.setAttribute("aria-disabled", String(atHome)); // disabled, it would lose the focus when it is pressed
    const { offset, weight } = heads[active];
    say(live, `Δ = ${offsetText(offset)}, W = ${fixedText(weight, 3)}`);
    const said = numbers.show(fixedText(wanted.data[at], 4), fixedText(made.data[at], 4), largest);
    tour.tell(`Head ${active + 1}: offset ${offsetText(offset)}. ${said}`);
  }
  function paintHeads() {
    rings.forEach((ring, head) => {
      const { offset, weight } = heads[head];
      const name = `Head ${head + 1}: offset ${offsetText(offset)}, weight ${fixedText(weight, 3)}. Arrow keys move it.`;
      placeMark(ring, offset);
      setProps(ring, { class: head === active ? "learn-head learn-on" : "learn-head", "aria-label": name });
    });
    const [y2, x2] = heads[active].offset;
    setProps(arrow, { x2, y2 });
  }
  function paintKernel() {
    const { counts, divisor } = KERNELS[kernel];
    const lit = String(heads[active].offset);
    cells.forEach(({ offset, cell, text }) => {
      const here = counts.filter((_, head) => String(heads[head].offset) === offset);
      const sum = here.reduce((total, count) => total + count, 0);
      setProp(cell, "class", offset === lit ? "learn-cell learn-on" : "learn-cell");
      say(text, here.length ? fixedText(sum, 0) : "");
    });
    say(board.caption, `The kernel that the heads make, × 1/${divisor}`);
  }

  return {
    stage: [
      div("learn-line-up", choice("Kernel", Object.keys(KERNELS), kernel, start), reset),
      div("learn-pair", around.root, board.root),
      numbers.root,
      strip.root,
    ],
    paint,
  };
}
