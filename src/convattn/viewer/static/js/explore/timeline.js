// Where heads attend during a training (figure 3 of Cordonnier, Loukas, Jaggi, 2020): centres, and the circles that hold
// 50 % and 90 % of the attention; play, or drag the epoch.

import { calm, div, fill, h, para, say, section, setProp, setProps, svg } from "../dom.js";
import { numberText } from "../draw.js";
import { floatsOf } from "../scene.js";
import { massRadius } from "../statistics.js";

/** @import { Model } from "./model.js" */
/** @import { Scene, Timeline } from "../scene.js" */

/** Number of colours in the style sheet. */
const HEAD_COLOURS = 9;

/** Time of a whole play, and of a moment when the reader wants less movement, in ms. */
const PLAY_TIME = 6000;
const MOMENT_TIME = 700;

const MARKS =
  "Each mark is a head's centre, seen from the query in the middle; circles hold 50 % and 90 % of its attention, the line is its way.";
const MAPS_FOLLOW = "Maps and words are those of the epoch, too.";
const MAPS_STAY = "Maps stay at the last epoch; circles leave content out and have mean widths.";

/** @param {Model} model @returns {{element: HTMLElement, update: () => void}} */
export function createTimeline(model) {
  const { state, scene } = model;
  const panels = div("timeline-panels");
  const play = h("button", { class: "play", onclick: () => (frame ? stop() : start()) }, "Play");
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
  const epochText = h("output", { class: "epoch", "aria-live": "off" }); // the slider says it
  const caption = para("caption");
  const element = section(
    "timeline",
    "Heads during the training",
    h("h2", null, "Where the heads attend during the training"),
    caption,
    div("timeline-tools", play, slider, epochText),
    panels,
  );
  let built = -1;
  let moment = 0;
  let frame = 0;
  /** The moment whose heads the maps show. @type {number | null} */
  let mapped = null;
  /** @type {{layer: number, heads: {centre: SVGElement, circles: SVGElement[], trail: SVGElement}[], box: HTMLElement}[]} */
  let drawn = [];

  /** @returns {Timeline | null} */
  const timeline = () => model.network().timeline;
  const last = () => (timeline()?.epochs.length ?? 1) - 1;

  /**
   * @param {number} at moment, with fractions
   * @param {number} row of the layers
   * @param {number} head
   * @returns {number[]} centre (down, right) and sharpness
   */
  function headAt(at, row, head) {
    const { centres, sharpness } = /** @type {Timeline} */ (timeline());
    const [moments, layers, heads] = shapeOf(scene, sharpness);
    const [places, alphas] = [floatsOf(scene.tensors, centres), floatsOf(scene.tensors, sharpness)];
    const of = (/** @type {number} */ time) => {
      const index = (Math.min(time, moments - 1) * layers + row) * heads + head;
      return [places[2 * index], places[2 * index + 1], alphas[index]];
    };
    const [before, after] = [of(Math.floor(at)), of(Math.floor(at) + 1)];
    return before.map((value, n) => value + (at % 1) * (after[n] - value));
  }

  /** @param {number} at moment: all maps follow */
  function moveMaps(at) {
    if (mapped === at) return;
    mapped = at;
    const layers = new Map();
    if (at < last())
      for (const [row, { layer, heads }] of drawn.entries()) {
        const places = heads.map((_, head) => headAt(at, row, head));
        const centres = Float32Array.from(places.flatMap(([down, right]) => [down, right]));
        layers.set(layer, { centres, sharpness: Float32Array.from(places, ([, , alpha]) => alpha) });
      }
    model.setEpoch(layers);
  }

  function build() {
    const found = timeline();
    built = state.get().network;
    mapped = null;
    if (!found) return;
    const follow = found.layers.every((layer) => model.quadratic(layer));
    say(caption, `${MARKS} ${follow ? MAPS_FOLLOW : MAPS_STAY}`);
    setProp(slider, "max", last());
    const farthest = floatsOf(scene.tensors, found.centres).reduce(
      (most, place) => Math.max(most, Math.abs(place) || 0), // NaN fills up a layer with fewer heads than another
      1,
    );
    const reach = Math.min(Math.ceil(farthest + 1), 40);
    drawn = found.layers.map((layer) => {
      const { number } = model.network().layers[layer];
      const heads = Array.from({ length: model.network().layers[layer].heads }, (_, head) => ({
        trail: svg("polyline", { class: "trail" }),
        circles: [svg("circle", { class: "mass mass-90" }), svg("circle", { class: "mass mass-50" })],
        centre: svg(
          "circle",
          { class: "centre", onclick: () => state.set({ layer, head }) },
          svg("title", null, `Head ${head + 1}`),
        ),
      }));
      const kind = (/** @type {number} */ head) => ({ style: { "--head": `var(--head-${head % HEAD_COLOURS})` } });
      const plot = svg(
        "svg",
        {
          viewBox: `${-reach} ${-reach} ${2 * reach} ${2 * reach}`,
          role: "img",
          "aria-label": `Centres of the heads of layer ${number}`,
        },
        ...axes(reach),
        ...heads.map(({ trail, circles }, head) => svg("g", kind(head), trail, ...circles)),
        ...heads.map(({ centre }, head) => svg("g", kind(head), centre)),
      );
      const box = h("figure", { class: "timeline-panel" }, plot, h("figcaption", null, `Layer ${number}`));
      return { layer, heads, box };
    });
    fill(panels, ...drawn.map(({ box }) => box));
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
        const place = { cx: right, cy: down };
        setProps(centre, { ...place, r: 0.14 });
        circles.forEach((circle, n) => setProps(circle, { ...place, r: massRadius(alpha, [0.9, 0.5][n]) }));
        const way = [...Array(Math.floor(at) + 1).keys(), at].map((time) => headAt(time, row, head));
        setProp(trail, "points", way.map(([y, x]) => `${x},${y}`).join(" "));
        centre.classList.toggle("chosen", chosen && head === state.get().head);
      }
    }
    if (document.activeElement !== slider) slider.value = String(at);
    const [before, after] = [found.epochs[Math.floor(at)], found.epochs[Math.ceil(at)]];
    const text = `epoch ${numberText(Math.round(10 * (before + (at % 1) * (after - before))) / 10)}`;
    say(epochText, text);
    slider.setAttribute("aria-valuetext", text);
    moveMaps(at);
  }

  const remember = () => state.set({ epoch: Math.round(moment) === last() ? null : Math.round(moment) });

  function start() {
    const from = moment >= last() ? 0 : moment;
    const begin = performance.now();
    say(play, "Pause");
    const steps = calm();
    const step = () => {
      const passed = performance.now() - begin;
      const smooth = from + (passed / PLAY_TIME) * last();
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
      const at = Math.min(state.get().epoch ?? last(), last());
      show(Math.round(moment) === at ? moment : at); // a moment between epochs stays
    },
  };
}

/** @param {Scene} scene @param {string} name @returns {number[]} */
function shapeOf({ tensors }, name) {
  return tensors.get(name)?.shape ?? [];
}

/** @param {number} reach @returns {SVGElement[]} a quiet grid of pixels, and its middle */
function axes(reach) {
  const lines = (/** @type {number[]} */ places) =>
    places.map((at) => `M${at} ${-reach}V${reach}M${-reach} ${at}H${reach}`).join("");
  const all = Array.from({ length: 2 * reach - 1 }, (_, at) => at + 1 - reach);
  return [svg("path", { class: "grid-line", d: lines(all) }), svg("path", { class: "axis", d: lines([0]) })];
}
