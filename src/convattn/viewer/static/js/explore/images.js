// The images of the scene, and one's own: the query stays where it is when the image is swapped.

import { div, h, keepChildren, reasonOf, say, setProp } from "../dom.js";
import { drawImage } from "./query.js";

/** @typedef {import("./model.js").Model} Model */

/**
 * @param {Model} model
 * @param {HTMLElement} dropZone where files may be dropped
 * @returns {{element: HTMLElement, update: () => void}}
 */
export function createImages(model, dropZone) {
  const { scene, state, source } = model;
  const strip = h("div", { class: "thumbs", role: "group", "aria-label": "Image" });
  const status = h("p", { class: "caption", role: "status" });
  const file = h("input", { type: "file", accept: "image/*", onchange: () => void take(file.files?.[0]) });
  const own = h("label", { class: "button file-button" }, file, h("span", null, "Own image …"));
  const note = h("p", { class: "caption image-note" });
  const element = div("images", strip, source.upload ? own : null, status, note);

  /** @param {File | undefined} picked */
  async function take(picked) {
    if (!picked || !source.upload) return;
    say(status, `Reading ${picked.name} …`);
    try {
      const image = await source.upload(picked);
      state.set({ image, average: false });
      say(status, "");
    } catch (error) {
      say(status, reasonOf(error));
    }
    file.value = "";
  }

  if (source.upload) {
    dropZone.addEventListener("dragover", (event) => {
      event.preventDefault();
      dropZone.classList.add("drop-here");
    });
    dropZone.addEventListener("dragleave", () => dropZone.classList.remove("drop-here"));
    dropZone.addEventListener("drop", (event) => {
      event.preventDefault();
      dropZone.classList.remove("drop-here");
      void take(/** @type {DragEvent} */ (event).dataTransfer?.files[0]);
    });
  }

  return {
    element,
    update() {
      const { image, average } = state.get();
      note.textContent = (!average && scene.images[image].note) || "";
      note.hidden = !note.textContent;
      keepChildren(strip, scene.images.length, (number) => {
        const { name, label } = scene.images[number];
        const canvas = h("canvas");
        drawImage(model, canvas, number); // the button takes a copy: every canvas on a page costs each of its frames
        const text = label && label !== name ? `${name}, ${label}` : name;
        const choose = () => state.set({ image: number, average: false });
        const copy = h("img", { src: canvas.toDataURL(), alt: "" });
        return h("button", { class: "thumb", "aria-label": text, title: text, onclick: choose }, copy);
      }).forEach((button, at) => setProp(button, "aria-pressed", at === image && !average));
    },
  };
}
