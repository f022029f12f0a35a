import { mount } from "./main.js";
import { staticSource } from "./source.js";

/** Opens the scene that is inside the page. */
export function openPage() {
  const root = /** @type {HTMLElement} */ (document.getElementById("convattn"));
  const text = document.getElementById("convattn-scene")?.textContent ?? "";
  // The page in a frame of a notebook has no address of its own.
  mount(root, staticSource(fromBase64(text)), { address: location.protocol !== "about:" });
}

/**
 * @param {string} text
 * @returns {ArrayBuffer}
 */
function fromBase64(text) {
  const letters = atob(text);
  const bytes = new Uint8Array(letters.length);
  for (let i = 0; i < letters.length; i++) bytes[i] = letters.charCodeAt(i);
  return bytes.buffer;
}
