// Safetensors files as the library writes them, for tests.

const BYTES = /** @type {const} */ ({ U8: 1, F32: 4, I32: 4 });

/**
 * @param {Record<string, {dtype: "U8" | "F32" | "I32", shape: number[], values: number[]}>} tensors
 * @param {Record<string, string>} metadata
 * @returns {ArrayBuffer}
 */
export function safetensorsFile(tensors, metadata) {
  let end = 0;
  const places = Object.entries(tensors).map(([name, { dtype, shape, values }]) => {
    const start = end;
    end += values.length * BYTES[dtype];
    return [name, { dtype, shape, data_offsets: [start, end] }];
  });
  const text = JSON.stringify({ __metadata__: metadata, ...Object.fromEntries(places) });
  const header = new TextEncoder().encode(text.padEnd(8 * Math.ceil(text.length / 8)));
  const file = new DataView(new ArrayBuffer(8 + header.length + end));
  file.setBigUint64(0, BigInt(header.length), true);
  new Uint8Array(file.buffer).set(header, 8);
  let at = 8 + header.length;
  for (const { dtype, values } of Object.values(tensors))
    for (const value of values) {
      if (dtype === "U8") file.setUint8(at, value);
      else if (dtype === "F32") file.setFloat32(at, value, true);
      else file.setInt32(at, value, true);
      at += BYTES[dtype];
    }
  return file.buffer;
}

/**
 * Returns what a file holds as a buffer of its own.
 *
 * @param {Uint8Array} bytes
 * @returns {ArrayBuffer}
 */
export function readBuffer(bytes) {
  return /** @type {ArrayBuffer} */ (bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.length));
}
