import { remoteSource } from "./remote.js";

/**
 * The page on a local server.
 *
 * @typedef {import("./source.js").Source} Source
 */

/**
 * Opens the server that this page came from.
 *
 * @param {string} base  its address
 * @returns {Promise<Source>}
 */
export async function serverSource(base) {
  const at = (/** @type {string} */ name) => new URL(name, base);
  return remoteSource({
    scene: await fetchBytes(at("scene")),
    rows: (fields) => fetchBytes(withFields(at("rows"), fields)),
    again: () => fetchBytes(at("scene")),
    upload: (file) => fetchBytes(withFields(at("images"), { name: file.name }), { method: "POST", body: file }),
  });
}

/**
 * Writes fields into an address.
 *
 * @param {URL} address
 * @param {object} fields
 * @returns {URL}
 */
export function withFields(address, fields) {
  for (const [name, value] of Object.entries(fields)) address.searchParams.set(name, `${value}`);
  return address;
}

/**
 * Fetches bytes; what the server refuses becomes an error in its words.
 *
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
