import { reasonOf } from "./dom.js";
import { mount, pageRoot } from "./page.js";
import { decodeLevels, findQuery, rowsInPage, spreadRow } from "./rows.js";
import { bytesOf, floatsOf, openScene, readSafetensors } from "./scene.js";

/** @import { LayerRows, RowsRequest, Source } from "./rows.js" */
/** @import { Scene } from "./scene.js" */

/**
 * A source whose networks run elsewhere: in the server.
 * @typedef {Record<string, number | string>} RowsFields  network, image, part, and row and col or prefix
 * @typedef {object} Transport  every answer is a safetensors file
 * @property {ArrayBuffer} scene
 * @property {(fields: RowsFields) => Promise<ArrayBuffer>} rows  `{layer}/levels` (heads, keys), `scales` and `lows` (heads)
 * @property {() => Promise<ArrayBuffer>} again  the scene as it is now
 * @property {(file: File) => Promise<ArrayBuffer>} upload  the picture, and in the metadata its number and description
 */

/** Opens what is at the other end. @param {Transport} transport @returns {Source} */
export function remoteSource(transport) {
  const scene = openScene(transport.scene);
  return {
    scene,
    rows: (asked) => askRows(scene, transport, asked),
    upload: (file) => sendPicture(scene, transport, file),
  };
}

/** @param {RowsRequest} asked @returns {RowsFields} as a server or a kernel reads it */
export const rowsFields = ({ network, image, query, part }) => ({
  network,
  image,
  part,
  ...("prefix" in query ? query : { row: query[0], col: query[1] }),
});

/**
 * Computes in the page what can be, and asks for the rest.
 * @param {Scene} scene
 * @param {Transport} transport
 * @param {RowsRequest} asked
 * @returns {Promise<LayerRows[]>}
 */
async function askRows(scene, transport, asked) {
  const { layers } = scene.networks[asked.network];
  const here = rowsInPage(scene, asked);
  const elsewhere = layers.some(({ attention }) => attention.kind === "maps" && !attention.stored);
  if (!elsewhere) return here;
  const answer = readSafetensors(await transport.rows(rowsFields(asked))).tensors;
  const came = layers.flatMap((layer, number) => {
    const levels = answer.get(`${number}/levels`);
    const found = levels && findQuery(scene, layer, asked.query);
    if (!found) return [];
    const lows = answer.has(`${number}/lows`) ? floatsOf(answer, `${number}/lows`) : null;
    const row = decodeLevels(bytesOf(answer, `${number}/levels`), floatsOf(answer, `${number}/scales`), lows);
    return [spreadRow(scene, layer, number, found, row)];
  });
  return [...here, ...came].sort((one, other) => one.layer - other.layer);
}

/**
 * Sends a picture, and adds to the scene what the network sees of it.
 * @param {Scene} scene
 * @param {Transport} transport
 * @param {File} file
 * @returns {Promise<number>}
 */
async function sendPicture(scene, transport, file) {
  const { metadata, tensors } = readSafetensors(await transport.upload(file));
  const { index, image } = JSON.parse(metadata["convattn.image"]);
  const picture = tensors.get("picture");
  if (!picture) throw new Error("the answer holds no picture");
  if (index > scene.images.length) takeOthers(scene, openScene(await transport.again()), index);
  scene.tensors.set(image.picture, picture);
  scene.images[index] = image;
  return index;
}

/**
 * Adds the pictures that others have sent in the meantime.
 * @param {Scene} scene
 * @param {Scene} now
 * @param {number} end  number of the first picture that is not taken
 */
function takeOthers(scene, now, end) {
  for (const image of now.images.slice(scene.images.length, end)) {
    const picture = now.tensors.get(image.picture);
    if (!picture) throw new Error(`the scene has no picture ${image.picture}`);
    scene.tensors.set(image.picture, picture);
    scene.images.push(image);
  }
}

/** The page on a local server. */

/** Opens the server that this page came from. @param {string} base its address @returns {Promise<Source>} */
export async function serverSource(base) {
  const at = (/** @type {string} */ name) => new URL(name, base);
  return remoteSource({
    scene: await fetchBytes(at("scene")),
    rows: (fields) => fetchBytes(withFields(at("rows"), fields)),
    again: () => fetchBytes(at("scene")),
    upload: (file) => fetchBytes(withFields(at("images"), { name: file.name }), { method: "POST", body: file }),
  });
}

/** Writes fields into an address. @param {URL} address @param {object} fields @returns {URL} */
export function withFields(address, fields) {
  for (const [name, value] of Object.entries(fields)) address.searchParams.set(name, `${value}`);
  return address;
}

/**
 * Fetches bytes; what the server refuses becomes an error in its words.
 * @param {URL} address
 * @param {RequestInit} [request]
 * @returns {Promise<ArrayBuffer>}
 */
async function fetchBytes(address, request) {
  let answer;
  try {
    answer = await fetch(address, request);
  } catch {
    throw new Error("the server does not answer; is it still running?");
  }
  if (!answer.ok) throw new Error(await answer.text());
  return answer.arrayBuffer();
}

/** Shows what the server holds that this page came from. */
export async function openServerPage() {
  try {
    mount(await serverSource(location.href));
  } catch (error) {
    pageRoot().textContent = `The page cannot be shown: ${reasonOf(error)}`;
  }
}
