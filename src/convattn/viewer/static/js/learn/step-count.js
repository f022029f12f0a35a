import { fill, h, oncePerFrame, say, svg } from "../dom.js";
import { numberText } from "../draw.js";
import { HARD } from "./bound.js";
import { comparison } from "./compare.js";
import { attendHeads } from "./heads.js";
import { bestTaps, convolve, kernelOfSize, tapsOf } from "./kernels.js";
import { choice, differenceText, numbersList, slider } from "./view.js";

/** @typedef {import("./kernels.js").Tap} Tap */

/**
 * Step 4: one head for each tap.
 * @param {import("./view.js").Tour} tour
 * @returns {import("./view.js").Step}
 */
export function countStep(tour) {
  let kind = /** @type {"blur" | "uneven"} */ ("uneven");
  let size = 3;
  let taps = tapsOf(kernelOfSize(kind, size));
  /** @type {Set<Tap>} */
  let kept = new Set(bestTaps(taps, 5).kept);
  let wanted = convolve(tour.picture, taps);

  const board = h("div", { class: "learn-board" });
  const bars = svg("svg", { class: "learn-bars", role: "img", preserveAspectRatio: "none" });
  const scale = h("figcaption");
  const strip = comparison(tour, null);
  const numbers = numbersList(["Error on this picture", "Worst error, any picture in 0…1", "Best with as many heads"]);
  const control = slider(
    "Number of heads",
    { min: 1, max: 9, step: 1, value: 5, text: (value) => `${value} of ${taps.length}` },
    (value) => {
      kept = new Set(bestTaps(taps, value).kept);
      frame.ask();
    },
  );

  function start() {
    taps = tapsOf(kernelOfSize(kind, size));
    wanted = convolve(tour.picture, taps);
    const heads = Math.min(taps.length, Math.max(1, Math.round(taps.length * 0.6)));
    kept = new Set(bestTaps(taps, heads).kept);
    control.set(heads, taps.length);
    layBoard();
    frame.ask();
  }
  function layBoard() {
    board.style.setProperty("--size", String(size));
    fill(
      board,
      ...taps.map((tap) =>
        h(
          "button",
          {
            type: "button",
            onClick: () => {
              if (!kept.delete(tap)) kept.add(tap);
              control.set(kept.size);
              frame.ask();
            },
          },
          numberText(tap.weight, 2),
        ),
      ),
    );
  }
  function paint() {
    const chosen = taps.filter((tap) => kept.has(tap));
    const largest = strip.show(wanted, attendHeads(tour.picture, chosen, HARD), null);
    [...board.children].forEach((button, at) => {
      button.setAttribute("aria-pressed", String(kept.has(taps[at])));
      button.setAttribute(
        "aria-label",
        `Tap at row ${taps[at].offset[0]}, column ${taps[at].offset[1]}, weight ${numberText(taps[at].weight, 2)}: a head`,
      );
    });
    const lost = taps.reduce((sum, tap) => (kept.has(tap) ? sum : sum + Math.abs(tap.weight)), 0);
    const best = bestTaps(taps, chosen.length).lost;
    numbers.values["Error on this picture"].textContent = differenceText(largest.value);
    numbers.values["Worst error, any picture in 0…1"].textContent = numberText(lost, 2);
    numbers.values["Best with as many heads"].textContent = numberText(best, 2);
    paintBars(chosen.length);
    tour.tell(
      `${chosen.length} of ${taps.length} heads: error ${differenceText(largest.value)}; the best possible worst case is ${numberText(best, 2)}.`,
    );
  }
  /** @param {number} heads */
  function paintBars(heads) {
    const rest = taps.map((_, at) => bestTaps(taps, at + 1).lost);
    const all = bestTaps(taps, 0).lost;
    say(scale, `Worst error with the best 1 to ${taps.length} heads; with none it is ${numberText(all, 2)}`);
    bars.setAttribute("viewBox", `0 0 ${Math.max(taps.length, 4) * 10} 60`);
    bars.setAttribute(
      "aria-label",
      `Worst error with the best 1 to ${taps.length} heads: ${rest.map((value) => numberText(value, 2)).join(", ")}`,
    );
    fill(
      bars,
      ...rest.map((value, at) => {
        const height = Math.max((value / all) * 58, 1);
        return svg("rect", {
          class: at + 1 === heads ? "learn-on" : null,
          x: at * 10 + 1,
          y: 60 - height,
          width: 8,
          height,
        });
      }),
    );
  }
  const frame = oncePerFrame(paint);
  layBoard();

  return {
    title: "A kernel of K × K taps needs K² heads",
    words: [
      [
        "A hard head fetches one pixel, so it can do the work of one tap. A 2 × 2 kernel needs four heads, a 3 × 3 kernel nine, a 5 × 5 kernel twenty-five.",
      ],
      [
        "With fewer heads, some taps stay without one. The best choice is to leave out the taps of smallest weight: on pictures with values from 0 to 1, the error can reach the sum of what is left out, and no other choice of as many one-pixel heads has a smaller worst case.",
      ],
    ],
    formula: ["worst error = max|x| · Σ", h("sub", null, "left out"), " |W", h("sub", null, "t"), "|"],
    inWords: "The worst error is the largest pixel times the sum of the absolute weights left out.",
    task: ["Move the number of heads, or press taps of the kernel to give them a head and to take it away."],
    notice: [
      "The difference is zero only when every tap has its head. The bars show the best worst case for 1, 2, 3 … heads.",
    ],
    more: ["The paper, theorem 1", "https://arxiv.org/pdf/1911.03584#section.3"],
    stage: h(
      "div",
      { class: "learn-parts" },
      h(
        "div",
        { class: "learn-line-up" },
        choice(
          "Size of the kernel",
          [1, 2, 3, 4, 5].map((item) => /** @type {[number, string]} */ ([item, `${item} × ${item}`])),
          size,
          (value) => {
            size = value;
            start();
          },
        ),
        choice(
          "Weights",
          /** @type {const} */ ([
            ["uneven", "uneven"],
            ["blur", "blur"],
          ]),
          kind,
          (value) => {
            kind = value;
            start();
          },
        ),
      ),
      control.root,
      h(
        "div",
        { class: "learn-pair" },
        h("figure", { class: "learn-view" }, board, h("figcaption", null, "The kernel: filled taps have a head")),
        h("figure", { class: "learn-view" }, bars, scale),
      ),
      numbers.root,
      strip.root,
    ),
    paint,
    destroy: () => frame.stop(),
  };
}
