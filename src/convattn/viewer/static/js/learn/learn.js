// The guided tour: its picture, its steps, and the way on to the network.

import { div, fill, h, oncePerFrame, para, say, section, span } from "../dom.js";
import { attentionStep } from "./step-attention.js";
import { bordersStep } from "./step-borders.js";
import { costStep } from "./step-cost.js";
import { countStep } from "./step-count.js";
import { encodingsStep } from "./step-encodings.js";
import { measuredStep } from "./step-measured.js";
import { offsetStep } from "./step-offset.js";
import { sharpnessStep } from "./step-sharpness.js";

/** @import { Picture } from "./kernels.js" */
/** @import { MakeStep, Step, Tour } from "./view.js" */
/** @import { Scene } from "../scene.js" */
/** @import { State } from "../state.js" */

const LARGEST_SIDE = 32;

/**
 * The first picture of a scene in grey, not larger than 32 × 32; without one, or if it is too narrow then, one made here.
 * @param {Scene} scene
 * @returns {Picture}
 */
export function tourPicture(scene) {
  const found = scene.images.length ? scene.tensors.get(scene.images[0].picture) : undefined;
  if (!found) return madePicture();
  const { shape } = found;
  const data = /** @type {Uint8Array} */ (found.data);
  const scale = Math.ceil(Math.max(shape[0], shape[1]) / LARGEST_SIDE);
  const [rows, cols] = shape.map((size) => Math.floor(size / scale));
  if (Math.min(rows, cols) < 8) return madePicture();
  const out = new Float32Array(rows * cols);
  for (let row = 0; row < rows * scale; row++) {
    for (let col = 0; col < cols * scale; col++) {
      const from = (row * shape[1] + col) * 3;
      const light = 0.299 * data[from] + 0.587 * data[from + 1] + 0.114 * data[from + 2];
      out[Math.floor(row / scale) * cols + Math.floor(col / scale)] += light / (255 * scale * scale);
    }
  }
  return { rows, cols, data: out };
}

/** A moon in the evening: an edge, and soft light. @returns {Picture} */
function madePicture() {
  const side = LARGEST_SIDE;
  const light = (/** @type {number} */ row, /** @type {number} */ col) =>
    (row - 12) ** 2 + (col - 18) ** 2 < 40 ? 0.95 : 0.1 + row / 80;
  const data = Float32Array.from({ length: side * side }, (_, at) => light(Math.floor(at / side), at % side));
  return { rows: side, cols: side, data };
}

/**
 * The pixel that differs most from its neighbours, away from the border.
 * @param {Picture} picture
 * @returns {[number, number]}
 */
export function tourQuery({ rows, cols, data }) {
  /** @type {[number, number]} */
  let best = [4, 4];
  let most = -1;
  for (let row = 4; row < rows - 4; row++) {
    for (let col = 4; col < cols - 4; col++) {
      const at = row * cols + col;
      const steps = [1, -1, cols, -cols].map((step) => Math.abs(data[at] - data[at + step]));
      const sum = steps.reduce((total, step) => total + step);
      if (sum > most) [best, most] = [[row, col], sum];
    }
  }
  return best;
}

/** Steps by the name that their texts have in tour.html. @type {Record<string, MakeStep>} */
const TOUR_STEPS = {
  attention: attentionStep,
  offset: offsetStep,
  sharpness: sharpnessStep,
  borders: bordersStep,
  count: countStep,
  measured: measuredStep,
  encodings: encodingsStep,
  cost: costStep,
};

/**
 * The guided tour: its steps, a way on to the trained network, and an appendix.
 * @param {Element} root
 * @param {Scene} scene
 * @param {State} state
 * @returns {{repaint: () => void}}
 */
export function mountLearn(root, scene, state) {
  const texts = [.../** @type {NodeListOf<HTMLTemplateElement>} */ (document.querySelectorAll("template[data-tour]"))];
  const end = texts.findIndex(({ dataset }) => dataset.tour === "measured");
  const picture = tourPicture(scene);
  const heard = h("p", { class: "only-heard", "aria-live": "polite" });
  let waiting = 0;
  /** @type {Tour} */
  const tour = {
    picture,
    query: tourQuery(picture),
    ask: oncePerFrame(() => repaint()),
    tell(text) {
      clearTimeout(waiting);
      waiting = window.setTimeout(() => say(heard, text), 600);
    },
  };

  const dots = h("ol", { class: "learn-dots" });
  const page = h("article", { class: "learn-step", onInput: tour.ask });
  const back = h("button", { onClick: () => state.set({ step: stepNow() - 1 }) }, "Back");
  const next = h("button", { class: "learn-next", onClick: goOn }, "Next");
  const tourRoot = section(
    "learn",
    "Guided tour",
    h("nav", { "aria-label": "Steps of the tour" }, dots),
    page,
    div("learn-moves", back, next),
    heard,
  );
  root.append(tourRoot);
  /** @type {Step | null} */
  let current = null;
  const repaint = () => current?.paint();

  const stepNow = () => Math.min(state.get().step, texts.length - 1);
  const leadsToNetwork = () => stepNow() === end || stepNow() === texts.length - 1;
  /** @param {number} step @returns {string} what its button says: a number, a letter in the appendix */
  const signOf = (step) => (step <= end ? String(step + 1) : "ABC"[step - end - 1]);
  /** @param {number} step @returns {string} */
  const nameOf = (step) => `${step <= end ? "Step" : "Appendix"} ${signOf(step)}: ${texts[step].dataset.name}`;

  function goOn() {
    state.set(leadsToNetwork() ? { view: "explore" } : { step: stepNow() + 1 });
  }

  /** @param {boolean} focus  whether the reader came here by a button */
  function lay(focus) {
    current?.destroy?.();
    clearTimeout(waiting);
    heard.textContent = "";
    const step = stepNow();
    const { dataset, content } = texts[step];
    const text = div("learn-text", content.cloneNode(true));
    const title = /** @type {HTMLElement} */ (text.firstElementChild);
    text.prepend(para("learn-count", step <= end ? `${step + 1} of ${end + 1}` : `Appendix ${signOf(step)}`));
    current = TOUR_STEPS[dataset.tour ?? ""]?.(tour, text) ?? null;
    page.dataset.step = String(step + 1);
    fill(page, text, current && div("learn-parts", ...current.stage));
    const items = texts.map(({ dataset: { name } }, at) => {
      const button = h(
        "button",
        {
          title: name,
          "aria-label": nameOf(at),
          "aria-current": at === step ? "step" : null,
          onClick: () => state.set({ step: at }),
        },
        signOf(at),
      );
      return h("li", null, at === end + 1 ? span("Appendix") : null, button);
    });
    fill(dots, ...items);
    back.disabled = step === 0;
    next.textContent = leadsToNetwork() ? "Explore" : "Next";
    repaint();
    if (focus) {
      title.focus({ preventScroll: true });
      if (tourRoot.getBoundingClientRect().top < 0) tourRoot.scrollIntoView();
    }
  }

  state.subscribe((_, changed) => {
    if (changed.has("step")) lay(true);
  });
  lay(false);
  return { repaint };
}
