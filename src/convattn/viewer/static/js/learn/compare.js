import { h, setProp } from "../dom.js";
import { largestSize } from "./kernels.js";
import { colourBar, followArrows, followPointer, nearestInside, pictureView, squareMark } from "./view.js";

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
  const marks = views.map((view) => {
    const mark = squareMark("learn-query", 1.6);
    if (chosen) {
      view.marks.append(mark.mark);
      view.frame.classList.add("learn-pick");
      followPointer(view.frame, rows, cols, (place) => {
        chosen(nearestInside(place, rows, cols));
        tour.ask();
      });
    }
    return mark;
  });
  let at = tour.query;
  if (chosen) {
    views[0].frame.tabIndex = 0;
    setProp(views[0].frame, "role", "group");
    setProp(views[0].frame, "aria-label", "Picture with the pixel that is looked from. Arrow keys move it.");
    followArrows(views[0].frame, ([down, right]) => {
      chosen(nearestInside([at[0] + down, at[1] + right], rows, cols));
      tour.ask();
    });
  }
  const bar = colourBar("Colours of the difference");
  views[3].root.append(bar.root);
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
      const apart = wanted.data.map((value, at) => Math.abs(value - made.data[at]));
      views[0].gray(data);
      views[1].gray(wanted.data, low, high);
      views[2].gray(made.data, low, high);
      views[3].heat(apart, (high - low) / 4, tour.theme());
      bar.paint((high - low) / 4, tour.theme());
      at = query;
      for (const mark of marks) mark.to(query);
      return largestSize(apart);
    },
  };
}
