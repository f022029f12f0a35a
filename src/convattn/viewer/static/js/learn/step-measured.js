import { div, followArrows, h, keepChildren, para, say, setProps, span } from "../dom.js";
import { OVERLAY, drawMap, fixedText } from "../draw.js";
import { choice, followPlace, numbersList, pictureView, placeMark, squareMark } from "./view.js";
import { nearestInside } from "../scene.js";

/** @import { Place, Step, Tour } from "./view.js" */

/**
 * Heads as they were measured, each for one neighbour: mean weights by displacement, from −radius to radius.
 * @typedef {{word: string, score: number, share: number, kernel: number[]}} MeasuredHead
 * @typedef {{name: string, trained: MeasuredHead, untrained: MeasuredHead}} HeadPair
 * @typedef {{source: string, grid: Place, images: number, heads: HeadPair[]}} MeasuredNetwork
 * @typedef {{photograph: string, radius: number, networks: Record<string, MeasuredNetwork>}} Measured
 */

/** Cells to each side of the query in a small map. */
const NEAR_REACH = 3;

/**
 * Lays the weights of heads around a patch: the largest of them at each.
 * @param {Place} grid
 * @param {Place} query
 * @param {number[][]} kernels
 * @param {number} radius
 */
export function layKernels([rows, cols], [row, col], kernels, radius) {
  const width = 2 * radius + 1;
  return Float32Array.from({ length: rows * cols }, (_, at) => {
    const [down, right] = [Math.floor(at / cols) - row + radius, (at % cols) - col + radius];
    const inside = Math.min(down, right) >= 0 && Math.max(down, right) < width;
    return inside ? Math.max(...kernels.map((kernel) => kernel[down * width + right])) : 0;
  });
}

/** The last step: heads of trained transformers. @param {Tour} tour @returns {Step} */
export function measuredStep(tour) {
  const text = document.getElementById("convattn-measured")?.textContent ?? "";
  const { photograph, radius, networks } = /** @type {Measured} */ (JSON.parse(text));
  const names = Object.keys(networks);
  let name = names[0];
  /** @type {number | null} null for all */
  let head = null;
  /** @type {Place} */
  let query = [8, 8];

  const conditions = /** @type {const} */ (["trained", "untrained"]);
  const views = conditions.map((condition) => {
    const view = pictureView(1, 1, `Where ${condition} heads look`, "learn-photograph");
    const mark = squareMark("learn-query", query);
    view.marks.replaceChildren(mark);
    view.canvas.before(h("img", { src: `data:image/jpeg;base64,${photograph}`, alt: "A yellow flower" }));
    followPlace(view.frame, 1, 1, ([row, col]) => look([(row + 0.5) * grid()[0] - 0.5, (col + 0.5) * grid()[1] - 0.5]));
    return { condition, view, mark };
  });
  const [{ view: first }] = views;
  setProps(first.frame, {
    tabindex: 0,
    role: "group",
    "aria-label": "Photograph. Arrow keys move the patch that looks.",
  });
  followArrows(first.frame, ([down, right]) => look([query[0] + down, query[1] + right]));
  const buttons = div("learn-strip");
  const numbers = numbersList("Weight at that neighbour", "untrained", "Explained by displacement", "untrained");
  const source = para("learn-small");
  const grid = () => networks[name].grid;

  /** @param {Place} place */
  function look(place) {
    query = nearestInside(place, grid());
    tour.ask();
  }
  /** @param {number | null} next */
  function choose(next) {
    head = next === head ? null : next;
    tour.ask();
  }
  function paint() {
    const { heads, images, source: from } = networks[name];
    const [rows, cols] = grid();
    query = nearestInside(query, [rows, cols]);
    const shown = head === null ? heads : [heads[head]];
    const high = Math.max(...shown.flatMap(({ trained }) => trained.kernel));
    for (const { condition, view, mark } of views) {
      const map = layKernels(
        [rows, cols],
        query,
        shown.map((one) => one[condition].kernel),
        radius,
      );
      drawMap(view.canvas, map, { rows, cols, low: 0, high, colours: OVERLAY });
      setProps(view.marks, { viewBox: `-0.5 -0.5 ${cols} ${rows}` });
      placeMark(mark, query);
    }
    const middle = /** @type {Place} */ ([NEAR_REACH, NEAR_REACH]);
    keepChildren(buttons, heads.length, (at) =>
      h("button", { class: "learn-head-map", onClick: () => choose(at) }, h("canvas"), span()),
    ).forEach((button, at) => {
      const { name: number, trained } = heads[at];
      const size = 2 * NEAR_REACH + 1;
      const near = layKernels([size, size], middle, [trained.kernel], radius);
      drawMap(/** @type {HTMLCanvasElement} */ (button.children[0]), near, {
        rows: size,
        cols: size,
        low: 0,
        high: Math.max(...near),
      });
      say(button.children[1], `${number}: ${trained.word}`);
      setProps(button, { "aria-pressed": head === at });
    });
    const said = /** @type {const} */ (["share", "score"]).map((number) =>
      conditions.map((condition) => {
        const shares = shown.map((one) => 100 * Math.max(one[condition][number], 0));
        const ends = [Math.min(...shares), Math.max(...shares)].map((share) =>
          fixedText(share, share && share < 1 ? 1 : 0),
        );
        return `${[...new Set(ends)].join(" to ")} %`;
      }),
    );
    say(
      source,
      `Heads are numbered layer.head. ${from}. Mean over ${images} photographs and all patches, around the patch that you press, up to ${radius} patches away.`,
    );
    tour.tell(numbers.show(...said.flat()));
  }

  return {
    stage: [
      div(
        "learn-line-up",
        choice("Network", names, name, (word) => void ([name, head] = [word, null])),
      ),
      div("learn-pair", ...views.map(({ view }) => view.root)),
      buttons,
      numbers.root,
      source,
    ],
    paint,
  };
}
