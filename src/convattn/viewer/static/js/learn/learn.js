import { div, fill, h, oncePerFrame, para, say, section } from "../dom.js";
import { tourPicture, tourQuery } from "./picture.js";
import { bordersStep } from "./step-borders.js";
import { costStep } from "./step-cost.js";
import { countStep } from "./step-count.js";
import { encodingsStep } from "./step-encodings.js";
import { offsetStep } from "./step-offset.js";
import { sharpnessStep } from "./step-sharpness.js";

/** @typedef {import("../state.js").State} State */

/** Steps by the name that their texts have in tour.html. @type {Record<string, import("./view.js").MakeStep>} */
const TOUR_STEPS = {
  offset: offsetStep,
  sharpness: sharpnessStep,
  borders: bordersStep,
  count: countStep,
  encodings: encodingsStep,
  cost: costStep,
};

/**
 * The guided tour: six steps, and a way on to the trained network.
 * @param {Element} root
 * @param {import("../source.js").Source} source
 * @param {State} state
 * @param {{theme: () => import("../colour.js").Theme}} options  theme: the one that is shown, also if the system chose it
 * @returns {{repaint: () => void}}
 */
export function mountLearn(root, source, state, { theme }) {
  const texts = [.../** @type {NodeListOf<HTMLTemplateElement>} */ (document.querySelectorAll("template[data-tour]"))];
  const end = texts.length - 1;
  const picture = tourPicture(source.scene);
  const heard = h("p", { class: "only-heard", "aria-live": "polite" });
  let waiting = 0;
  /** @type {import("./view.js").Tour} */
  const tour = {
    picture,
    query: tourQuery(picture),
    theme,
    ask: oncePerFrame(() => repaint()),
    tell(text) {
      clearTimeout(waiting);
      waiting = window.setTimeout(() => say(heard, text), 600);
    },
  };

  const dots = h("ol", { class: "learn-dots" });
  const page = h("article", { class: "learn-step", onInput: tour.ask });
  const back = h("button", { onClick: () => go(-1) }, "Back");
  const next = h("button", { class: "learn-next", onClick: () => go(1) }, "Next");
  const tourRoot = section(
    "learn",
    "Guided tour",
    h("nav", { "aria-label": "Steps of the tour" }, dots),
    page,
    div("learn-moves", back, next),
    heard,
  );
  root.append(tourRoot);
  /** @type {import("./view.js").Step | null} */
  let current = null;
  const repaint = () => current?.paint();

  const stepNow = () => Math.min(state.get().step, end);
  /** @param {number} by */
  function go(by) {
    const step = stepNow() + by;
    if (step > end) state.set({ view: "explore" });
    else if (step >= 0) state.set({ step });
  }

  /** @param {boolean} focus  whether the reader came here by a button */
  function lay(focus) {
    current?.destroy?.();
    clearTimeout(waiting);
    heard.textContent = "";
    const step = stepNow();
    const { dataset, content } = texts[step];
    const text = h("div", { class: step < end ? "learn-text" : "learn-text learn-end" }, content.cloneNode(true));
    const title = /** @type {HTMLElement} */ (text.firstElementChild);
    if (step < end) text.prepend(para("learn-count", `${step + 1} of ${end}`));
    current = TOUR_STEPS[dataset.tour ?? ""]?.(tour, text) ?? null;
    page.dataset.step = String(step + 1);
    fill(page, text, current && div("learn-parts", ...current.stage));
    const buttons = texts.map(({ dataset: { name } }, at) =>
      h(
        "button",
        {
          title: name,
          "aria-label": at < end ? `Step ${at + 1}: ${name}` : name,
          "aria-current": at === step ? "step" : null,
          onClick: () => state.set({ step: at }),
        },
        at < end ? at + 1 : "→",
      ),
    );
    fill(dots, ...buttons.map((button) => h("li", null, button)));
    back.disabled = step === 0;
    next.textContent = current ? "Next" : "Explore";
    repaint();
    if (focus) {
      title.focus({ preventScroll: true });
      if (tourRoot.getBoundingClientRect().top < 0) tourRoot.scrollIntoView();
    }
  }

  state.subscribe((_, changed) => {
    if (changed.has("step")) lay(true);
    else if (changed.has("theme")) repaint();
  });
  lay(false);
  return { repaint };
}
