// A handle on the centre of a quadratic head: drag it, or move it by keys; the map and the network follow.

import { clamp } from "../clamp.js";
import { div, h, para, say, setProp, span } from "../dom.js";
import { fixedText } from "../draw.js";
import { followArrows } from "../keys.js";
import { onDrag } from "./field.js";
import { shiftWords, unitOf } from "./words.js";

/** @typedef {import("./model.js").Model} Model */
/** @typedef {import("./field.js").Field} Field */
/** @typedef {import("../scene.js").Pair} Pair */

/** Step of the arrow keys, in steps of the keys; Shift takes a tenth. */
const KEY_STEP = 0.5;

/**
 * @param {Model} model
 * @param {Field} field
 * @returns {{element: HTMLElement, tools: HTMLElement, update: (query: Pair | null) => void}}
 */
export function createHandle(model, field) {
  const { state } = model;
  const element = h("button", { class: "handle", "data-testid": "handle" });
  const putBack = () => {
    model.reset();
    element.focus({ preventScroll: true }); // this button is gone
  };
  const reset = h("button", { onclick: putBack }, "Put heads back");
  const sharpness = h("input", {
    type: "range",
    min: "-4",
    max: "4",
    step: "0.05",
    oninput: () => {
      const { layer, head } = state.get();
      model.move(layer, head, centreNow(), Math.exp(Number(sharpness.value)));
    },
  });
  const sharpnessText = h("output");
  const hint = para("hint", "Drag the ring: it is the centre of this head.");
  const tools = div(
    "handle-tools",
    hint,
    h("label", { class: "slider" }, span("Sharpness"), sharpness, sharpnessText),
    reset,
  );
  /** @type {Pair | null} */
  let stand = null;

  /** @returns {Pair} */
  function centreNow() {
    const { layer, head } = state.get();
    const heads = model.quadratic(layer);
    return heads ? [heads.centres[2 * head], heads.centres[2 * head + 1]] : [0, 0];
  }

  /** @param {Pair} centre */
  function moveTo(centre) {
    const { layer, head } = state.get();
    const { grid } = model.layer().keys;
    const within = /** @type {Pair} */ (centre.map((size, axis) => clamp(size, -grid[axis], grid[axis])));
    model.move(layer, head, within);
  }

  onDrag(element, (event) => {
    if (!stand) return;
    const pixel = field.pixelAt(event);
    const { step } = model.layer().keys;
    moveTo([(pixel[0] - stand[0]) / step[0], (pixel[1] - stand[1]) / step[1]]);
  });
  followArrows(element, (arrow, event) => {
    const step = event.shiftKey ? KEY_STEP / 10 : KEY_STEP;
    const [down, right] = centreNow();
    moveTo([down + step * arrow[0], right + step * arrow[1]]);
  });

  return {
    element,
    tools,
    update(query) {
      stand = query;
      const { layer, head } = state.get();
      const heads = model.quadratic(layer);
      element.hidden = !heads || !query;
      tools.hidden = !heads;
      if (!heads || !query) return;
      const centre = centreNow();
      const { step } = model.layer().keys;
      field.placePoint(element, [query[0] + step[0] * centre[0], query[1] + step[1] * centre[1]]);
      setProp(
        element,
        "aria-label",
        `Centre of head ${head + 1}: ${shiftWords(centre, unitOf(model.layer()), 2)}. Arrow keys move it.`,
      );
      const alpha = heads.sharpness[head];
      if (document.activeElement !== sharpness) sharpness.value = String(Math.log(alpha));
      say(sharpnessText, `α = ${fixedText(alpha, 2)}`);
      reset.hidden = !model.anyMoved();
    },
  };
}
