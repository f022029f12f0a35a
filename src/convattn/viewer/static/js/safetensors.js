/**
 * Reads the safetensors format: eight bytes with the length of a JSON header, the header, the numbers.
 *
 * @typedef {Float32Array | Uint8Array | Int32Array} Numbers
 * @typedef {{dtype: string, shape: number[], data: Numbers}} Tensor
 * @typedef {{metadata: Record<string, string>, tensors: Map<string, Tensor>}} SafetensorsFile
 */

/** Names of the dtypes that scenes have, with what holds their numbers. */
const SAFETENSORS_TYPES = { F16: Uint16Array, F32: Float32Array, I32: Int32Array, U8: Uint8Array };

/**
 * Reads a file. Numbers of 16 bits become float32; the others are views of the buffer where it is aligned.
 *
 * @param {ArrayBuffer} buffer
 * @returns {SafetensorsFile}
 */
export function readSafetensors(buffer) {
  const length = buffer.byteLength < 8 ? NaN : Number(new DataView(buffer).getBigUint64(0, true));
  if (!(length <= buffer.byteLength - 8)) throw new Error("the file is no safetensors file, or is cut off");
  const header = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 8, length)));
  const start = 8 + length;
  /** @type {Map<string, Tensor>} */
  const tensors = new Map();
  for (const [name, entry] of Object.entries(header)) {
    if (name === "__metadata__") continue;
    const [from, to] = entry.data_offsets;
    if (start + to > buffer.byteLength) throw new Error(`the file is cut off: it does not hold ${name}`);
    const data = safetensorsNumbers(entry.dtype, buffer, start + from, to - from);
    const size = entry.shape.reduce((/** @type {number} */ a, /** @type {number} */ b) => a * b, 1);
    if (data.length !== size) throw new Error(`the file is damaged: ${name} has ${data.length} numbers, not ${size}`);
    tensors.set(name, { dtype: entry.dtype, shape: entry.shape, data });
  }
  return { metadata: header.__metadata__ ?? {}, tensors };
}

/**
 * @param {string} dtype
 * @param {ArrayBuffer} buffer
 * @param {number} from
 * @param {number} bytes
 * @returns {Numbers}
 */
function safetensorsNumbers(dtype, buffer, from, bytes) {
  const type = SAFETENSORS_TYPES[/** @type {keyof typeof SAFETENSORS_TYPES} */ (dtype)];
  if (!type) throw new Error(`numbers of dtype ${dtype} cannot be read`);
  const width = type.BYTES_PER_ELEMENT;
  const aligned = from % width === 0;
  const whole = aligned ? buffer : buffer.slice(from, from + bytes);
  const numbers = new type(whole, aligned ? from : 0, Math.floor(bytes / width));
  return numbers instanceof Uint16Array ? halvesToFloats(numbers) : numbers;
}

/**
 * Decodes numbers of 16 bits (IEEE 754 binary16).
 *
 * @param {Uint16Array} halves
 * @returns {Float32Array}
 */
function halvesToFloats(halves) {
  const floats = new Float32Array(halves.length);
  for (let i = 0; i < halves.length; i++) {
    const half = halves[i];
    const sign = half & 0x8000 ? -1 : 1;
    const exponent = (half >> 10) & 31;
    const fraction = half & 1023;
    if (exponent === 31) floats[i] = fraction ? NaN : sign * Infinity;
    else if (exponent === 0) floats[i] = sign * fraction * 2 ** -24;
    else floats[i] = sign * (1024 + fraction) * 2 ** (exponent - 25);
  }
  return floats;
}

/**
 * Makes a function that returns the numbers of a tensor, which must be of one type, under its name.
 *
 * @template {Numbers} T
 * @param {new (...given: any[]) => T} type
 * @param {string} kind  what such numbers are called in errors
 * @returns {(tensors: Map<string, Tensor>, name: string) => T}
 */
function numbersOf(type, kind) {
  return (tensors, name) => {
    const data = tensors.get(name)?.data;
    if (!(data instanceof type)) throw new Error(`the scene has no ${kind} ${name}`);
    return data;
  };
}

export const floatsOf = numbersOf(Float32Array, "numbers");
export const integersOf = numbersOf(Int32Array, "integers");
export const bytesOf = numbersOf(Uint8Array, "bytes");
