/** Largest file and largest side of a picture that a user may drop on the page. */
const LARGEST_FILE = 64 * 2 ** 20;

/**
 * Reads a picture as the page needs it: all of it, squeezed to the given size, as `convattn view --images` does.
 *
 * @param {File} file
 * @param {number} rows
 * @param {number} cols
 * @returns {Promise<Uint8Array>}  (rows, cols, 3)
 */
export async function readPicture(file, rows, cols) {
  if (file.size > LARGEST_FILE) throw new Error(`${file.name} is larger than ${LARGEST_FILE / 2 ** 20} MB`);
  let bitmap;
  try {
    bitmap = await createImageBitmap(file);
  } catch {
    throw new Error(`${file.name} is no picture that this browser can read`);
  }
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [cols, rows];
  const context = canvas.getContext("2d", { willReadFrequently: true });
  if (!context) throw new Error("this browser cannot draw pictures");
  context.imageSmoothingQuality = "high";
  context.fillStyle = "white"; // behind what is transparent
  context.fillRect(0, 0, cols, rows);
  context.drawImage(bitmap, 0, 0, cols, rows);
  bitmap.close();
  return new Uint8Array(context.getImageData(0, 0, cols, rows).data.filter((_, at) => at % 4 < 3));
}
