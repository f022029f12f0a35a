// Where heads attend during a training (figure 3 of Cordonnier, Loukas, Jaggi, 2020): centres, and the circles that hold
// 50 % and 90 % of the attention; play, or drag the epoch.

import { calm, fill, h, say, setProp, svg } from "../dom.js";
import { numberText } from "../draw.js";
import { headColour } from "../colour.js";
import { floatsOf } from "../safetensors.js";
import { massRadius } from "../statistics.js";

/** @typedef {import("./model.js").Model} Model */
/** @typedef {import("../scene.js").Timeline} Timeline */

/** Time of a whole play, and of a moment when the reader wants less movement, in ms. */
const PLAY_TIME = 6000;
const MOMENT_TIME = 700;

/**
 * @param {Model} model
 * @returns {{element: HTMLElement, update: () => void, destroy: () => void}}
 */
export function createTimeline(model) {
  const { state, scene } = model;
  const panels = h("div", { class: "timeline-panels" });
  const play = h("button", { type: "button", class: "play", onclick: () => (frame ? stop() : start()) }, "Play");
  const slider = h("input", {
    type: "range",
    min: "0",
    step: "any",
    "aria-label": "Epoch",
    oninput: () => {
      stop();
      show(Number(slider.value));
      remember();
    },
  });
  const epochText = h("output", { class: "epoch" });
  const element = h(
    "section",
    { class: "timeline", "aria-label": "Heads during the training" },
    h("h3", null, "Where the heads attend during the training"),
    h(
      "p",
      { class: "caption" },
      "Each mark is the centre of a head, seen from the query in the middle; the circles hold 50 % and 90 % of its attention, and the line is the way it came.",
    ),
    h("div", { class: "timeline-tools" }, play, slider, epochText),
    panels,
  );
  let built = -1;
  let moment = 0;
  let frame = 0;
  /** @type {{layer: number, heads: {centre: SVGElement, circles: SVGElement[], trail: SVGElement}[], box: HTMLElement}[]} */
  let drawn = [];

  /** @returns {Timeline | null} */
  const timeline = () => model.network().timeline;
  const last = () => (timeline()?.epochs.length ?? 1) - 1;

  /** @param {number} at moment, with fractions @param {number} row @param {number} head @returns {[number, number, number]} centre and sharpness */
  function headAt(at, row, head) {
    const { centres, sharpness } = /** @type {Timeline} */ (timeline());
    const shape = /** @type {import("../safetensors.js").Tensor} */ (scene.tensors.get(centres)).shape;
    const [, layers, heads] = shape;
    const [places, alphas] = [floatsOf(scene.tensors, centres), floatsOf(scene.tensors, sharpness)];
    const before = Math.min(Math.floor(at), shape[0] - 1);
    const after = Math.min(before + 1, shape[0] - 1);
    const share = at - before;
    const index = (/** @type {number} */ time) => (time * layers + row) * heads + head;
    const between = (/** @type {ArrayLike<number>} */ data, /** @type {number} */ one, /** @type {number} */ other) =>
      data[one] + share * (data[other] - data[one]);
    return [
      between(places, 2 * index(before), 2 * index(after)),
      between(places, 2 * index(before) + 1, 2 * index(after) + 1),
      between(alphas, index(before), index(after)),
    ];
  }

  function build() {
    const found = timeline();
    built = state.get().network;
    if (!found) return;
    setProp(slider, "max", last());
    const shape = /** @type {import("../safetensors.js").Tensor} */ (scene.tensors.get(found.centres)).shape;
    const places = floatsOf(scene.tensors, found.centres);
    let reach = 1;
    for (const place of places) reach = Math.max(reach, Math.abs(place));
    reach = Math.min(Math.ceil(reach + 1), 40);
    drawn = found.layers.map((layer) => {
      const heads = Array.from({ length: shape[2] }, (_, head) => ({
        trail: svg("polyline", { class: "trail" }),
        circles: [svg("circle", { class: "mass mass-90" }), svg("circle", { class: "mass mass-50" })],
        centre: svg(
          "circle",
          { class: "centre", onclick: () => state.set({ layer, head }) },
          svg("title", null, `Head ${head + 1}`),
        ),
      }));
      const plot = svg(
        "svg",
        {
          viewBox: `${-reach} ${-reach} ${2 * reach} ${2 * reach}`,
          role: "img",
          "aria-label": `Centres of the heads of layer ${layer + 1}`,
        },
        ...axes(reach),
        ...heads.map(({ trail }) => trail),
        ...heads.flatMap(({ circles }) => circles),
        ...heads.map(({ centre }) => centre),
      );
      const box = h("figure", { class: "timeline-panel" }, plot, h("figcaption", null, `Layer ${layer + 1}`));
      return { layer, heads, box };
    });
    fill(panels, ...drawn.map(({ box }) => box));
    paintHeads();
  }

  function paintHeads() {
    for (const { heads } of drawn) {
      for (const [head, { centre, circles, trail }] of heads.entries()) {
        for (const mark of [centre, ...circles, trail])
          mark.style.setProperty("--head", headColour(model.theme(), head));
      }
    }
  }

  /** @param {number} at */
  function show(at) {
    const found = timeline();
    if (!found) return;
    moment = at;
    for (const [row, { heads, layer, box }] of drawn.entries()) {
      const chosen = state.get().layer === layer;
      box.classList.toggle("chosen", chosen);
      for (const [head, { centre, circles, trail }] of heads.entries()) {
        const [down, right, alpha] = headAt(at, row, head);
        for (const mark of [centre, ...circles]) {
          setProp(mark, "cx", right);
          setProp(mark, "cy", down);
        }
        setProp(centre, "r", 0.14);
        setProp(circles[0], "r", massRadius(alpha, 0.9));
        setProp(circles[1], "r", massRadius(alpha, 0.5));
        const steps = [...Array(Math.floor(at) + 1).keys(), at];
        setProp(
          trail,
          "points",
          steps
            .map((time) => headAt(time, row, head))
            .map(([y, x]) => `${x},${y}`)
            .join(" "),
        );
        centre.classList.toggle("chosen", chosen && head === state.get().head);
      }
    }
    if (document.activeElement !== slider) slider.value = String(at);
    const before = Math.floor(at);
    const epoch =
      found.epochs[before] +
      (at - before) * ((found.epochs[before + 1] ?? found.epochs[before]) - found.epochs[before]);
    const text = `epoch ${numberText(Math.round(epoch * 10) / 10)}`;
    say(epochText, text);
    slider.setAttribute("aria-valuetext", text);
  }

  const remember = () => state.set({ epoch: Math.round(moment) === last() ? null : Math.round(moment) });

  function start() {
    const from = moment >= last() ? 0 : moment;
    const begin = performance.now() - (from / Math.max(last(), 1)) * PLAY_TIME;
    say(play, "Pause");
    const steps = calm();
    const step = () => {
      const passed = performance.now() - begin;
      const smooth = (passed / PLAY_TIME) * last();
      const at = Math.min(steps ? Math.floor(from + passed / MOMENT_TIME) : smooth, last());
      show(at);
      if (at >= last()) return stop();
      frame = requestAnimationFrame(step);
    };
    frame = requestAnimationFrame(step);
  }

  function stop() {
    if (!frame) return;
    cancelAnimationFrame(frame);
    frame = 0;
    say(play, "Play");
    remember();
  }

  return {
    element,
    update() {
      element.hidden = !timeline();
      if (built !== state.get().network) {
        stop();
        build();
        moment = last();
      }
      if (element.hidden || frame) return;
      paintHeads();
      const { epoch } = state.get();
      show(Math.min(epoch ?? last(), last()));
    },
    destroy: () => cancelAnimationFrame(frame),
  };
}

/** @param {number} reach @returns {SVGElement[]} a quiet grid of pixels, and its middle */
function axes(reach) {
  const lines = [];
  for (let at = -reach + 1; at < reach; at++) {
    const name = at === 0 ? "axis" : "grid-line";
    lines.push(svg("line", { class: name, x1: at, x2: at, y1: -reach, y2: reach }));
    lines.push(svg("line", { class: name, y1: at, y2: at, x1: -reach, x2: reach }));
  }
  return lines;
}
