// Parts that the steps of the tour share: pictures with marks on them, controls, numbers.

import {
  createSegments,
  div,
  followArrows,
  followPointer,
  freshId,
  h,
  pointedShare,
  say,
  setProp,
  setProps,
  span,
  svg,
} from "../dom.js";
import { drawCells, drawMap, drawRamp, numberText, packedColour } from "../draw.js";
import { largestSize } from "./kernels.js";
import { clamp } from "../numbers.js";
import { nearestInside } from "../scene.js";

/** @import { Props } from "../dom.js" */
/** @import { Picture } from "./kernels.js" */

/** @typedef {[number, number]} Place  row and column */

/**
 * @typedef {object} Tour  what every step is given
 * @property {Picture} picture
 * @property {Place} query  where steps start
 * @property {() => void} ask  for the step to be painted in the next frame
 * @property {(text: string) => void} tell  says a sentence to screen readers, when things have settled
 */

/**
 * @typedef {object} Step
 * @property {Element[]} stage
 * @property {() => void} paint  draws everything again: at the start and when the theme changes
 * @property {() => void} [destroy]
 */

/** @typedef {(tour: Tour, text: Element) => Step} MakeStep   text: what the reader reads, from tour.html */

/**
 * A canvas of one pixel per cell, with a layer for marks in units of cells, and a caption.
 * @param {number} rows
 * @param {number} cols
 * @param {string} name
 * @param {string} [kind]  a class
 * @param {number} [reach]  the cell (reach, reach) has its marks at 0, 0
 */
export function pictureView(rows, cols, name, kind = "", reach = 0) {
  const canvas = h("canvas", { width: cols, height: rows, role: "img", "aria-label": name });
  const marks = svg("svg", { viewBox: `${-0.5 - reach} ${-0.5 - reach} ${cols} ${rows}`, "aria-hidden": true });
  const caption = h("figcaption", null, name);
  const frame = h("div", { class: "learn-frame", style: { "aspect-ratio": `${cols} / ${rows}` } }, canvas, marks);
  const ramp = h("canvas", { "aria-hidden": true });
  const most = h("span");
  const bar = div("learn-bar", span("0"), ramp, most);
  const root = h("figure", { class: `learn-view ${kind}` }, frame, caption);
  return {
    root,
    canvas,
    caption,
    frame,
    marks,
    /** @param {ArrayLike<number>} data  NaN is left transparent @param {number} [low] @param {number} [high] */
    gray(data, low = 0, high = 1) {
      drawCells(canvas, rows, cols, (cell) => {
        if (Number.isNaN(data[cell])) return 0;
        const light = Math.round(255 * clamp((data[cell] - low) / (high - low), 0, 1));
        return packedColour([light, light, light]);
      });
    },
    /**
     * Draws in colours, with a bar of them from 0 to `high`.
     * @param {ArrayLike<number>} data
     * @param {number} high
     * @param {string} [end]  what is written at the end of the bar; nothing makes none
     */
    heat(data, high, end = numberText(high, 2)) {
      drawMap(canvas, data, { rows, cols, low: 0, high });
      if (!end) return;
      if (!bar.parentNode) root.append(bar);
      drawRamp(ramp);
      say(most, end);
    },
  };
}

/**
 * A view of the square around a pixel, which is marked, with marks placed by their offset from it.
 * @param {number} reach
 * @param {string} name
 * @param {string} [kind]
 */
export function windowView(reach, name, kind) {
  const view = pictureView(2 * reach + 1, 2 * reach + 1, name, kind, reach);
  view.marks.append(squareMark("learn-query", [0, 0]));
  return view;
}

/** A square around one cell. @param {string} kind @param {Place} place @param {number} [size] */
export function squareMark(kind, place, size = 1) {
  const square = { x: -size / 2, y: -size / 2, width: size, height: size };
  const mark = svg("g", { class: kind }, svg("rect", square), svg("rect", square));
  placeMark(mark, place);
  return mark;
}

/** @param {Element} mark @param {Place} place */
export const placeMark = (mark, [row, col]) => setProp(mark, "transform", `translate(${col} ${row})`);

/** A ring on a head. @param {Props} props */
export const ringMark = (props) => svg("g", props, svg("circle", { r: 0.36 }), svg("circle", { r: 0.36 }));

/**
 * Follows a pointer on an element that shows rows × cols cells. A start that returns false is not followed.
 * @param {Element} target
 * @param {number} rows
 * @param {number} cols
 * @param {(place: Place, first: boolean) => unknown} moved  place in cells, not rounded
 */
export function followPlace(target, rows, cols, moved) {
  followPointer(target, (event, first) => {
    const [down, across] = pointedShare(target, event);
    return moved([down * rows - 0.5, across * cols - 0.5], first);
  });
}

/**
 * A slider with its name and its value in words.
 * @param {string} name
 * @param {{min: number, max: number, step: number | "any", value: number, text: (value: number) => string}} range
 * @param {(value: number) => void} changed
 */
export function slider(name, { text, ...range }, changed) {
  const id = freshId("slider");
  const output = h("output", { for: id, "aria-live": "off" }, text(range.value));
  const input = h("input", { id, type: "range", ...range, "aria-valuetext": text(range.value) });
  const show = () => {
    output.textContent = text(Number(input.value));
    setProp(input, "aria-valuetext", output.textContent);
  };
  input.addEventListener("input", () => {
    show();
    changed(Number(input.value));
  });
  return {
    root: div("learn-slider", h("label", { for: id }, name), input, output),
    /** @param {number} value @param {number} [max] */
    set(value, max = Number(input.max)) {
      setProp(input, "max", max);
      input.value = String(value);
      show();
    },
  };
}

/**
 * A row of words of which one is chosen.
 * @param {string} name
 * @param {readonly string[]} words
 * @param {string} value
 * @param {(word: string) => void} changed
 */
export function choice(name, words, value, changed) {
  const texts = Object.fromEntries(words.map((word) => [word, word]));
  const { element, set } = createSegments(name, texts, changed);
  set(value);
  return element;
}

/** Numbers with their names. @param {string[]} names */
export function numbersList(...names) {
  const values = names.map(() => h("dd"));
  const items = names.map((name, at) => h("div", null, h("dt", null, name), values[at]));
  return {
    root: h("dl", { class: "learn-numbers" }, ...items),
    /** @param {string[]} texts  @returns {string} the numbers as a sentence */
    show(...texts) {
      texts.forEach((text, at) => say(values[at], text));
      return texts.map((text, at) => `${names[at]}: ${text}`).join(". ");
    },
  };
}

/** A difference as a student reads it: zero, rounding, or a number. @param {number} value */
export function differenceText(value) {
  if (value === 0) return "0, exactly";
  return value < 5e-7 ? `${powerText(value)}, rounding` : powerText(value);
}

/** @param {number} power  a whole number */
export const tenTo = (power) =>
  `10${String(power).replace(/./g, (sign) => "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"["-0123456789".indexOf(sign)])}`;

/** A number, small ones with a power of ten. @param {number} value */
export function powerText(value) {
  if (Number.isNaN(value)) return "–";
  if (value === 0 || (Math.abs(value) >= 0.001 && Math.abs(value) < 1e4)) return numberText(value, 2);
  const [digits, power] = value.toExponential(1).split("e");
  return `${digits} × ${tenTo(Number(power))}`;
}

/**
 * The picture, both outputs and their difference, small, side by side, with the query on each.
 * @param {Tour} tour
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
     * Draws the picture, from its darkest to its lightest, both outputs in one scale of grey, and what is between them.
     * @param {Picture} wanted  by convolution
     * @param {Picture} made  by attention
     * @returns {number} the largest difference
     */
    show(wanted, made) {
      const [low, high] = [Math.min(...wanted.data), Math.max(...wanted.data)];
      const most = (high - low) / 4;
      const apart = wanted.data.map((value, at) => Math.abs(value - made.data[at]));
      views[0].gray(data, Math.min(...data), Math.max(...data));
      views[1].gray(wanted.data, low, high);
      views[2].gray(made.data, low, high);
      views[3].heat(apart, most, `≥ ${numberText(most, 2)}`);
      for (const mark of marks) placeMark(mark, at);
      return largestSize(apart);
    },
  };
}
