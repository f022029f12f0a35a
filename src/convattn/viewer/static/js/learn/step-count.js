import { div, fill, h, say, svg } from "../dom.js";
import { numberText } from "../draw.js";
import { HARD, attendHeads, bestTaps, convolvePicture, kernelOfSize, tapsOf } from "./kernels.js";
import { choice, comparison, differenceText, numbersList, slider } from "./view.js";

/** @import { Tap } from "./kernels.js" */
/** @import { Step, Tour } from "./view.js" */

const KERNEL_SIZES = [1, 2, 3, 4, 5].map((size) => `${size} × ${size}`);

/** Step 4: one head for each tap. @param {Tour} tour @returns {Step} */
export function countStep(tour) {
  let kind = "uneven";
  let size = 3;
  /** @type {Tap[]} */
  let taps = [];
  let kept = new Set(taps);
  let wanted = tour.picture;

  const board = div("learn-board");
  const bars = svg("svg", { class: "learn-bars", role: "img", preserveAspectRatio: "none" });
  const scale = h("figcaption");
  const strip = comparison(tour, null);
  const numbers = numbersList("Error on this picture", "Worst error, pixels in ±1", "Best with as many heads");
  const text = (/** @type {number} */ value) => `${value} of ${taps.length}`;
  const control = slider("Number of heads", { min: 0, max: 9, step: 1, value: 5, text }, (value) => {
    kept = new Set(bestTaps(taps, value).kept);
  });

  function start() {
    taps = tapsOf(kernelOfSize(kind, size));
    wanted = convolvePicture(tour.picture, taps);
    kept = new Set(bestTaps(taps, Math.ceil(taps.length * 0.55)).kept);
    control.set(kept.size, taps.length);
    board.style.setProperty("--size", String(size));
    const buttons = taps.map((tap) => {
      const press = () => {
        if (!kept.delete(tap)) kept.add(tap);
        control.set(kept.size);
        tour.ask();
      };
      const name = `Head for the tap at row ${tap.offset[0]}, column ${tap.offset[1]}, weight ${numberText(tap.weight, 2)}`;
      return h("button", { "aria-label": name, onClick: press }, numberText(tap.weight, 2));
    });
    fill(board, ...buttons);
  }
  function paint() {
    const chosen = taps.filter((tap) => kept.has(tap));
    const error = differenceText(strip.show(wanted, attendHeads(tour.picture, chosen, HARD)));
    [...board.children].forEach((button, at) => button.setAttribute("aria-pressed", String(kept.has(taps[at]))));
    const lost = taps.reduce((sum, tap) => (kept.has(tap) ? sum : sum + Math.abs(tap.weight)), 0);
    const best = numberText(bestTaps(taps, chosen.length).lost, 2);
    tour.tell(`${text(chosen.length)} heads. ${numbers.show(error, numberText(lost, 2), best)}`);
    paintBars(chosen.length);
  }
  /** @param {number} heads */
  function paintBars(heads) {
    const rest = taps.map((_, at) => bestTaps(taps, at + 1).lost);
    const all = bestTaps(taps, 0).lost;
    const numbers = rest.map((value) => numberText(value, 2)).join(", ");
    bars.setAttribute("viewBox", `0 0 ${Math.max(taps.length, 4) * 10} 60`);
    const what = `Worst error with the best 1 to ${taps.length} heads`;
    bars.setAttribute("aria-label", `${what}: ${numbers}`);
    say(scale, `${what}; with none it is ${numberText(all, 2)}`);
    fill(
      bars,
      ...rest.map((value, at) => {
        const height = Math.max((value / all) * 58, 1);
        const kind = at + 1 === heads ? "learn-on" : null;
        return svg("rect", { class: kind, x: at * 10 + 1, y: 60 - height, width: 8, height });
      }),
    );
  }
  start();

  return {
    stage: [
      div(
        "learn-line-up",
        choice("Size of the kernel", KERNEL_SIZES, KERNEL_SIZES[size - 1], (word) => {
          size = Number(word[0]);
          start();
        }),
        choice("Weights", ["uneven", "blur"], kind, (word) => {
          kind = word;
          start();
        }),
      ),
      control.root,
      div(
        "learn-pair",
        h("figure", { class: "learn-view" }, board, h("figcaption", null, "The kernel: filled taps have a head")),
        h("figure", { class: "learn-view" }, bars, scale),
      ),
      numbers.root,
      strip.root,
    ],
    paint,
  };
}
