import { div, setProps } from "../dom.js";
import { numberText } from "../draw.js";
import { followArrows } from "../keys.js";
import { nearestInside } from "../scene.js";
import { largestSize } from "./kernels.js";
import { followPlace, pictureView, placeMark, squareMark } from "./view.js";

/** @typedef {import("./view.js").Picture} Picture */
/** @typedef {import("./view.js").Place} Place */

/**
 * The picture, both outputs and their difference, small, side by side, with the query on each.
 * @param {import("./view.js").Tour} tour
 * @param {Place | null} start  the query at first, which the reader moves; null for none
 */
export function comparison(tour, start) {
  const { rows, cols, data } = tour.picture;
  const views = ["Picture", "Convolution", "Attention", "Difference"].map((name) => pictureView(rows, cols, name));
  let at = start ?? tour.query;
  const marks = views.map(({ marks, frame }) => {
    const mark = squareMark("learn-query", at, 1.6);
    if (start) {
      marks.append(mark);
      frame.classList.add("learn-pick");
      followPlace(frame, rows, cols, choose);
    }
    return mark;
  });
  if (start) {
    const label = "Picture with the pixel that is looked from. Arrow keys move it.";
    setProps(views[0].frame, { tabindex: 0, role: "group", "aria-label": label });
    followArrows(views[0].frame, ([down, right]) => choose([at[0] + down, at[1] + right]));
  }
  /** @param {Place} place */
  function choose(place) {
    at = nearestInside(place, [rows, cols]);
    tour.ask();
  }
  return {
    query: () => at,
    root: div("learn-strip", ...views.map((view) => view.root)),
    /**
     * Draws both outputs in one scale of grey, and what is between them.
     * @param {Picture} wanted  by convolution
     * @param {Picture} made  by attention
     * @returns {number} the largest difference
     */
    show(wanted, made) {
      const [low, high] = [Math.min(...wanted.data), Math.max(...wanted.data)];
      const most = (high - low) / 4;
      const apart = wanted.data.map((value, at) => Math.abs(value - made.data[at]));
      views[0].gray(data);
      views[1].gray(wanted.data, low, high);
      views[2].gray(made.data, low, high);
      views[3].heat(apart, most, tour.theme(), `≥ ${numberText(most, 2)}`);
      for (const mark of marks) placeMark(mark, at);
      return largestSize(apart);
    },
  };
}
