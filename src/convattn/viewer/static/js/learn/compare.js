import { h, setProps } from "../dom.js";
import { numberText } from "../draw.js";
import { followArrows } from "../keys.js";
import { largestSize } from "./kernels.js";
import { followPointer, nearestInside, pictureView, placeMark, squareMark } from "./view.js";

/** @typedef {import("./view.js").Picture} Picture */
/** @typedef {import("./view.js").Place} Place */

/**
 * The picture, both outputs and their difference, small, side by side, with the query on each.
 * @param {import("./view.js").Tour} tour
 * @param {((query: Place) => void) | null} chosen  called with the pixel that is pointed at
 */
export function comparison(tour, chosen) {
  const { rows, cols, data } = tour.picture;
  const views = ["Picture", "Convolution", "Attention", "Difference"].map((name) => pictureView(rows, cols, name));
  const marks = views.map(({ marks, frame }) => {
    const mark = squareMark("learn-query", tour.query, 1.6);
    if (chosen) {
      marks.append(mark);
      frame.classList.add("learn-pick");
      followPointer(frame, rows, cols, choose);
    }
    return mark;
  });
  let at = tour.query;
  if (chosen) {
    const label = "Picture with the pixel that is looked from. Arrow keys move it.";
    setProps(views[0].frame, { tabindex: 0, role: "group", "aria-label": label });
    followArrows(views[0].frame, ([down, right]) => choose([at[0] + down, at[1] + right]));
  }
  /** @param {Place} place */
  function choose(place) {
    chosen?.(nearestInside(place, rows, cols));
    tour.ask();
  }
  return {
    root: h("div", { class: "learn-strip" }, ...views.map((view) => view.root)),
    /**
     * Draws both outputs in one scale of grey, and what is between them.
     * @param {Picture} wanted  by convolution
     * @param {Picture} made  by attention
     * @param {Place} query
     * @returns {number} the largest difference
     */
    show(wanted, made, query) {
      const [low, high] = [Math.min(...wanted.data), Math.max(...wanted.data)];
      const most = (high - low) / 4;
      const apart = wanted.data.map((value, at) => Math.abs(value - made.data[at]));
      views[0].gray(data);
      views[1].gray(wanted.data, low, high);
      views[2].gray(made.data, low, high);
      views[3].heat(apart, most, tour.theme(), `≥ ${numberText(most, 2)}`);
      at = query;
      for (const mark of marks) placeMark(mark, query);
      return largestSize(apart);
    },
  };
}
