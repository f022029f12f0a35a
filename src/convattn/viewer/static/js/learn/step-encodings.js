import { div, fill, h, setProps, span, svg } from "../dom.js";
import { clamp } from "../clamp.js";
import { followArrows } from "../keys.js";
import { FIT_SIDE, compareEncodings, targetMap } from "./fit.js";
import { largestSize } from "./kernels.js";
import { choice, followPlace, slider, windowView, placeMark } from "./view.js";

const FIT_MIDDLE = (FIT_SIDE - 1) / 2;
const FIT_LIMIT = FIT_MIDDLE - 2;

/** @param {number} share */
const matchText = (share) => `${Number((100 * share).toPrecision(3))} %`;

/**
 * Step 5: other functions of the offset.
 * @param {import("./view.js").Tour} tour
 * @param {Element} text
 * @returns {import("./view.js").Step}
 */
export function encodingsStep(tour, text) {
  const note = /** @type {Element} */ (text.querySelector(".learn-small")); // stands below the maps
  /** @type {[number, number]} */
  let offset = [-2, 3];
  let shape = "a spot";
  let waves = 1;
  let width = 400;

  const target = windowView(FIT_MIDDLE, "Target: drag it", "learn-touch learn-target");
  const views = compareEncodings(offset, shape, waves).map(({ name }) => windowView(FIT_MIDDLE, name));
  const handle = svg("circle", { class: "learn-handle", r: 1.6 });
  target.marks.append(handle);
  setProps(target.frame, { tabindex: 0, role: "group", "aria-label": "Target of the head. Arrow keys move it." });
  const place = (/** @type {number[]} */ ...wanted) => {
    const [row, col] = wanted.map((at) => clamp(at, -FIT_LIMIT, FIT_LIMIT));
    offset = [row, col];
    tour.ask();
  };
  followPlace(target.frame, FIT_SIDE, FIT_SIDE, ([row, col]) => place(row - FIT_MIDDLE, col - FIT_MIDDLE));
  followArrows(target.frame, ([down, right]) => place(Math.round(offset[0]) + down, Math.round(offset[1]) + right));

  function paint() {
    const wanted = targetMap(offset, shape);
    const most = largestSize(wanted);
    target.heat(wanted, most, tour.theme());
    placeMark(handle, offset);
    const fitted = compareEncodings(offset, shape, waves, width);
    fitted.forEach(({ name, formula, parameters, additive, map, overlap }, at) => {
      views[at].heat(map, most, tour.theme(), "");
      fill(
        views[at].caption,
        h("strong", null, name),
        span(formula),
        span(`match ${matchText(overlap)}`),
        span(`${parameters.toLocaleString("en")} parameters`),
        span(additive ? "sum over axes" : "not a sum over axes"),
      );
    });
    tour.tell(fitted.map(({ name, overlap }) => `${name} ${matchText(overlap)}`).join(", "));
  }

  return {
    stage: [
      div(
        "learn-line-up",
        choice("Target", ["a spot", "a slanted stripe"], shape, (word) => void (shape = word)),
        slider(
          "Waves of the sinusoidal, per axis",
          { min: 1, max: 8, step: 1, value: waves, text: String },
          (value) => void (waves = value),
        ).root,
        slider(
          "Width of the tables per axis",
          { min: 8, max: 512, step: 8, value: width, text: String },
          (value) => void (width = value),
        ).root,
      ),
      div("learn-gallery", target.root, ...views.map((view) => view.root)),
      note,
    ],
    paint,
  };
}
