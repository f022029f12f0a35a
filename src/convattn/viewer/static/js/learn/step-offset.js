import { fill, h, oncePerFrame, setProp, svg } from "../dom.js";
import { fixedText } from "../draw.js";
import { HARD } from "./bound.js";
import { comparison } from "./compare.js";
import { attendHeads } from "./heads.js";
import { KERNELS, convolve, namedTaps } from "./kernels.js";
import {
  choice,
  differenceText,
  followArrows,
  followPointer,
  nearestInside,
  numbersList,
  pictureView,
  squareMark,
} from "./view.js";

/** @typedef {import("./kernels.js").Tap} Tap */
/** @typedef {import("./view.js").Place} Place */

const REACH = 2; // heads can be moved this far
const WINDOW = 2 * REACH + 1;

/** @param {number} at */
const signed = (at) => (at > 0 ? `+${at}` : at < 0 ? `−${-at}` : "0");
/** @param {Place} offset */
const offsetText = ([row, col]) => `(${signed(row)}, ${signed(col)})`;

/**
 * Step 1: nine heads around a pixel, each of which can be dragged.
 * @param {import("./view.js").Tour} tour
 * @returns {import("./view.js").Step}
 */
export function offsetStep(tour) {
  const { rows, cols } = tour.picture;
  let kernel = /** @type {import("./kernels.js").KernelName} */ ("Blur");
  let home = namedTaps(kernel);
  let heads = namedTaps(kernel);
  let active = 2;
  let query = tour.query;
  let wanted = convolve(tour.picture, home);

  const around = pictureView(WINDOW, WINDOW, "Around the pixel: where the heads look", "learn-touch");
  const window = pictureView(WINDOW, WINDOW, "", "learn-kernel");
  const strip = comparison(tour, (place) => {
    query = place;
    frame.ask();
  });
  const numbers = numbersList(["Convolution at the pixel", "Attention at the pixel", "Largest difference anywhere"]);
  const reset = h("button", { type: "button", onClick: () => start(kernel) }, "Put the heads back");
  const live = h("b", { class: "learn-live" });
  const pixel = squareMark("learn-query");
  pixel.to([REACH, REACH]);
  const arrow = svg("line", { class: "learn-arrow" });
  around.marks.removeAttribute("aria-hidden");
  const rings = heads.map((_, head) => {
    const ring = svg(
      "g",
      { class: "learn-head", tabindex: 0, role: "button" },
      svg("circle", { r: 0.36 }),
      svg("circle", { r: 0.36 }),
    );
    followArrows(ring, ([down, right]) => {
      const [row, col] = heads[head].offset;
      move(head, [row + down, col + right]);
    });
    ring.addEventListener("focus", () => activate(head));
    return ring;
  });
  around.marks.append(pixel.mark, arrow, ...rings);
  followPointer(
    around.marks,
    () => [WINDOW, WINDOW],
    (place, phase) => {
      const [row, col] = nearestInside(place, WINDOW, WINDOW);
      /** @type {Place} */
      const offset = [row - REACH, col - REACH];
      if (phase === "start") {
        const found = heads.map((head) => String(head.offset)).lastIndexOf(String(offset));
        if (found < 0) return false;
        activate(found);
      } else move(active, offset);
      return true;
    },
  );

  /** @param {number} head */
  function activate(head) {
    active = head;
    frame.ask();
  }
  /** @param {number} head @param {Place} offset */
  function move(head, offset) {
    const inside = /** @type {Place} */ (offset.map((at) => Math.min(Math.max(at, -REACH), REACH)));
    if (head === active && inside[0] === heads[head].offset[0] && inside[1] === heads[head].offset[1]) return;
    active = head;
    heads[head] = { ...heads[head], offset: inside };
    frame.ask();
  }
  /** @param {typeof kernel} name */
  function start(name) {
    [kernel, home, heads] = [name, namedTaps(name), namedTaps(name)];
    wanted = convolve(tour.picture, home);
    frame.ask();
  }

  function paint() {
    const made = attendHeads(tour.picture, heads, HARD);
    const largest = strip.show(wanted, made, query);
    const view = new Float32Array(WINDOW * WINDOW).fill(NaN);
    for (let at = 0; at < view.length; at++) {
      const row = query[0] + Math.floor(at / WINDOW) - REACH;
      const col = query[1] + (at % WINDOW) - REACH;
      if (row >= 0 && row < rows && col >= 0 && col < cols) view[at] = tour.picture.data[row * cols + col];
    }
    around.gray(view);
    paintHeads();
    paintKernel();
    const at = query[0] * cols + query[1];
    numbers.values["Convolution at the pixel"].textContent = fixedText(wanted.data[at], 4);
    numbers.values["Attention at the pixel"].textContent = fixedText(made.data[at], 4);
    numbers.values["Largest difference anywhere"].textContent = differenceText(largest.value);
    const moved = heads.filter(({ offset }, head) => String(offset) !== String(home[head].offset)).length;
    reset.disabled = !moved;
    const { offset, weight } = heads[active];
    fill(live, `Δ = ${offsetText(offset)}, W = ${fixedText(weight, 3)}`);
    tour.tell(
      `Head ${active + 1} looks at offset ${offsetText(offset)}. ${moved} moved. ` +
        `Largest difference ${differenceText(largest.value)}.`,
    );
  }
  function paintHeads() {
    rings.forEach((ring, head) => {
      const [row, col] = heads[head].offset;
      setProp(ring, "transform", `translate(${col + REACH} ${row + REACH})`);
      setProp(ring, "class", head === active ? "learn-head learn-on" : "learn-head");
      setProp(
        ring,
        "aria-label",
        `Head ${head + 1}: offset ${offsetText(heads[head].offset)}, weight ${fixedText(heads[head].weight, 3)}. Arrow keys move it.`,
      );
    });
    const [row, col] = heads[active].offset;
    const ends = { x1: REACH, y1: REACH, x2: col + REACH, y2: row + REACH };
    for (const [name, value] of Object.entries(ends)) setProp(arrow, name, value);
  }
  function paintKernel() {
    const { counts, divisor } = KERNELS[kernel];
    window.canvas.setAttribute("aria-label", `Kernel that the heads make, over ${divisor}`);
    fill(/** @type {Element} */ (window.root.lastElementChild), `The kernel that the heads make, × 1/${divisor}`);
    const cells = [];
    for (let at = 0; at < WINDOW * WINDOW; at++) {
      const [row, col] = [Math.floor(at / WINDOW), at % WINDOW];
      const here = heads.flatMap(({ offset }, head) =>
        offset[0] + REACH === row && offset[1] + REACH === col ? [head] : [],
      );
      const count = here.reduce((sum, head) => sum + counts[head], 0);
      cells.push(
        svg("rect", {
          class: here.includes(active) ? "learn-cell learn-on" : "learn-cell",
          x: col - 0.5,
          y: row - 0.5,
          width: 1,
          height: 1,
        }),
        here.length &&
          svg(
            "text",
            { class: here.includes(active) ? "learn-on" : null, x: col, y: row },
            String(count).replace("-", "−"),
          ),
      );
    }
    fill(
      window.marks,
      ...cells,
      svg("rect", { class: "learn-home", x: REACH - 1.5, y: REACH - 1.5, width: 3, height: 3 }),
    );
  }
  const frame = oncePerFrame(paint);

  return {
    title: "A head is an offset",
    words: [
      [
        "A 3 × 3 convolution takes nine neighbours of a pixel, multiplies each by a weight, and adds them up. In " +
          "self-attention, a ",
        h("em", null, "head"),
        " decides where the pixel looks, and multiplies what it finds there by " + "a weight of its own.",
      ],
      [
        "So nine heads that look at the nine neighbours are a 3 × 3 convolution. Each head stands for one tap of the kernel, not for a filter.",
      ],
    ],
    formula: [
      "y[q] = Σ",
      h("sub", null, "h"),
      " W",
      h("sub", null, "h"),
      " x[q + Δ",
      h("sub", null, "h"),
      "]",
      h("span", { class: "learn-where" }, "this head: ", live),
    ],
    inWords:
      "The output at pixel q is the sum over heads of the head's weight times the pixel at q plus the head's offset.",
    task: ["Drag one of the rings to another pixel, or choose it with Tab and press the arrow keys."],
    notice: [
      "The tap of the kernel moves with the head, and the outputs part. Put it back, and the difference is zero again.",
    ],
    more: ["The paper, theorem 1", "https://arxiv.org/pdf/1911.03584#section.3"],
    stage: h(
      "div",
      { class: "learn-parts" },
      choice(
        "Kernel",
        Object.keys(KERNELS).map((name) => /** @type {[typeof kernel, string]} */ ([name, name])),
        kernel,
        start,
      ),
      h("div", { class: "learn-pair" }, around.root, window.root),
      h("div", { class: "learn-line-up" }, numbers.root, reset),
      strip.root,
    ),
    paint,
    destroy: () => frame.stop(),
  };
}
