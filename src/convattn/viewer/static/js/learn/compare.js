import { h } from "../dom.js";
import { numberText } from "../draw.js";
import { largestDifference } from "./kernels.js";
import { colourBar, followPointer, nearestInside, pictureView, squareMark } from "./view.js";

/** @typedef {import("./view.js").Picture} Picture */
/** @typedef {import("./view.js").Place} Place */

/**
 * The picture, both outputs and their difference, small, side by side, with the query on each.
 * @param {import("./view.js").Tour} tour
 * @param {((query: Place) => void) | null} chosen  called with the pixel that is pointed at
 * @param {string} [convolution]  its name
 */
export function comparison(tour, chosen, convolution = "Convolution") {
  const { rows, cols } = tour.picture;
  const names = ["Picture", convolution, "Attention", "Difference"];
  const views = names.map((name) => pictureView(rows, cols, name));
  const marks = views.map((view) => {
    const mark = squareMark("learn-query", 1.6);
    view.marks.append(mark.mark);
    if (chosen) {
      view.frame.classList.add("learn-pick");
      followPointer(
        view.frame,
        () => [rows, cols],
        (place) => chosen(nearestInside(place, rows, cols)),
      );
    }
    return mark;
  });
  const bar = colourBar("Colours of the difference");
  views[3].root.append(bar.root);
  return {
    root: h("div", { class: "learn-strip" }, ...views.map((view) => view.root)),
    /**
     * Draws both outputs in one scale of grey, and what is between them.
     * @param {Picture} wanted  by convolution
     * @param {Picture} made  by attention
     * @param {Place | null} query
     */
    show(wanted, made, query) {
      let [low, high] = [Infinity, -Infinity];
      for (const value of wanted.data) [low, high] = [Math.min(low, value), Math.max(high, value)];
      views[0].gray(tour.picture.data);
      views[1].gray(wanted.data, low, high);
      views[2].gray(made.data, low, high);
      const most = (high - low) / 2;
      const apart = wanted.data.map((value, at) => Math.abs(value - made.data[at]));
      views[3].heat(apart, most, tour.theme());
      bar.paint(most, tour.theme());
      for (const { mark, to } of marks) {
        mark.style.display = query ? "" : "none";
        if (query) to(query);
      }
      const largest = largestDifference(wanted, made);
      views[3].canvas.setAttribute("aria-label", `Difference, at most ${numberText(largest.value, 2)}`);
      return largest;
    },
  };
}
