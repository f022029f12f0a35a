import { fill, h, oncePerFrame, say } from "../dom.js";
import { tourPicture, tourQuery } from "./picture.js";
import { bordersStep } from "./step-borders.js";
import { costStep } from "./step-cost.js";
import { countStep } from "./step-count.js";
import { encodingsStep } from "./step-encodings.js";
import { offsetStep } from "./step-offset.js";
import { sharpnessStep } from "./step-sharpness.js";

/** @typedef {import("../state.js").State} State */

const TOUR_STEPS = [offsetStep, sharpnessStep, bordersStep, countStep, encodingsStep, costStep];
const STEP_NAMES = ["Offset", "Sharpness", "Borders", "Number of heads", "Encodings", "Cost", "A trained network"];

/**
 * The guided tour: six steps, and a way on to the trained network.
 * @param {Element} root
 * @param {import("../source.js").Source} source
 * @param {State} state
 * @param {{theme: () => import("../colour.js").Theme}} options  theme: the one that is shown, also if the system chose it
 * @returns {{destroy: () => void, repaint: () => void}}
 */
export function mountLearn(root, source, state, { theme }) {
  const picture = tourPicture(source.scene);
  const heard = h("p", { class: "only-heard", "aria-live": "polite" });
  let waiting = 0;
  /** @type {import("./view.js").Tour} */
  const tour = {
    picture,
    query: tourQuery(picture),
    theme,
    ask: () => frame.ask(),
    tell(text) {
      clearTimeout(waiting);
      waiting = window.setTimeout(() => say(heard, text), 600);
    },
  };

  const dots = h("ol", { class: "learn-dots" });
  const page = h("article", { class: "learn-step" });
  const back = h("button", { onClick: () => go(-1) }, "Back");
  const next = h("button", { class: "learn-next", onClick: () => go(1) }, "Next");
  const tourRoot = h(
    "section",
    { class: "learn", "aria-label": "Guided tour" },
    h("nav", { "aria-label": "Steps of the tour" }, dots),
    page,
    h("div", { class: "learn-moves" }, back, next),
    heard,
  );
  root.append(tourRoot);
  /** @type {import("./view.js").Step | null} */
  let current = null;
  const repaint = () => current?.paint();
  const frame = oncePerFrame(repaint);

  const stepNow = () => Math.min(state.get().step, TOUR_STEPS.length);
  /** @param {number} by */
  function go(by) {
    const step = stepNow() + by;
    if (step > TOUR_STEPS.length) state.set({ view: "explore" });
    else if (step >= 0) state.set({ step });
  }

  /** @param {boolean} focus  whether the reader came here by a button */
  function lay(focus) {
    current?.destroy?.();
    clearTimeout(waiting);
    heard.textContent = "";
    const step = stepNow();
    current = step < TOUR_STEPS.length ? TOUR_STEPS[step](tour) : null;
    page.dataset.step = String(step + 1);
    const title = h("h2", { tabindex: -1 }, current ? current.title : "Now look at a trained network");
    fill(page, ...(current ? stepParts(title, current, step) : endParts(title)));
    fill(
      dots,
      ...STEP_NAMES.map((name, at) =>
        h(
          "li",
          null,
          h(
            "button",
            {
              title: name,
              "aria-label": at < TOUR_STEPS.length ? `Step ${at + 1}: ${name}` : name,
              "aria-current": at === step ? "step" : null,
              onClick: () => state.set({ step: at }),
            },
            at < TOUR_STEPS.length ? at + 1 : "→",
          ),
        ),
      ),
    );
    back.disabled = step === 0;
    next.textContent = current ? "Next" : "Explore";
    repaint();
    if (focus) {
      title.focus({ preventScroll: true });
      if (tourRoot.getBoundingClientRect().top < 0) tourRoot.scrollIntoView();
    }
  }

  const unsubscribe = state.subscribe((_, changed) => {
    if (changed.has("step")) lay(true);
    else if (changed.has("theme")) repaint();
  });
  lay(false);
  return {
    destroy() {
      unsubscribe();
      frame.stop();
      clearTimeout(waiting);
      current?.destroy?.();
      tourRoot.remove();
    },
    repaint,
  };
}

/**
 * @param {HTMLElement} title
 * @param {import("./view.js").Step} step
 * @param {number} number
 */
function stepParts(title, { words, formula, task, notice, more, stage }, number) {
  return [
    h(
      "div",
      { class: "learn-text" },
      h("p", { class: "learn-count" }, `${number + 1} of ${TOUR_STEPS.length}`),
      title,
      h("p", null, ...words),
      h("p", { class: "learn-formula" }, ...formula),
      h("p", { class: "learn-task" }, h("strong", null, "Do "), ...task),
      h("p", { class: "learn-task" }, h("strong", null, "Notice "), ...notice),
      h(
        "p",
        { class: "learn-more" },
        h("a", { href: `https://arxiv.org/pdf/1911.03584#${more[1]}`, target: "_blank", rel: "noreferrer" }, more[0]),
      ),
    ),
    h("div", { class: "learn-parts" }, ...stage),
  ];
}

/** @param {HTMLElement} title */
function endParts(title) {
  const text =
    "You have placed heads by hand. In a trained network their offsets and sharpness are learned. In Explore you see which heads became taps of a kernel, and which look at wide areas instead.";
  return [h("div", { class: "learn-text learn-end" }, title, h("p", null, text))];
}
