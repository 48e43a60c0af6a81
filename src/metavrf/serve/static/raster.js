// From strokes to the small picture that the model sees.
//
// People on this page draw large or small and anywhere. A drawing is brought to one size and place, about that of Omniglot's
// characters on their sheets of 105 x 105 pixels, and its strokes get one width whatever the size it was drawn at. A box filter
// then brings it to the model's size.

const LONG_SIDE = 0.66; // of the sheet
const MIDDLE = 0.485;
const WIDTH = 5 / 105;
const SMALLEST = 0.1; // drawings below this share of the pad are dots: not enlarged further
const FINE = 4; // pixels drawn for one pixel of the picture, each way

const sheet = document.createElement("canvas");

/** Rows of numbers, 0 (paper) to 255 (ink), of strokes given as lists of points in 0..1. */
export function raster(strokes, size) {
  const side = size * FINE;
  if (sheet.width !== side) sheet.width = sheet.height = side;
  const context = sheet.getContext("2d", { willReadFrequently: true });
  context.setTransform(1, 0, 0, 1, 0, 0);
  context.clearRect(0, 0, side, side);
  const { x, y, long } = extent(strokes);
  const scale = LONG_SIDE / Math.max(long, SMALLEST);
  context.setTransform(scale * side, 0, 0, scale * side, (MIDDLE - x * scale) * side, (MIDDLE - y * scale) * side);
  context.lineWidth = WIDTH / scale;
  trace(context, strokes);
  const alpha = context.getImageData(0, 0, side, side).data;
  return Array.from({ length: size }, (_, row) => Array.from({ length: size }, (_, column) => {
    let sum = 0;
    for (let i = 0; i < FINE; i++) {
      for (let j = 0; j < FINE; j++) sum += alpha[4 * ((row * FINE + i) * side + column * FINE + j) + 3];
    }
    return Math.round(sum / FINE ** 2);
  }));
}

function extent(strokes) {
  let [left, right, top, bottom] = [1, 0, 1, 0];
  for (const [x, y] of strokes.flat()) {
    left = Math.min(left, x);
    right = Math.max(right, x);
    top = Math.min(top, y);
    bottom = Math.max(bottom, y);
  }
  return { x: (left + right) / 2, y: (top + bottom) / 2, long: Math.max(right - left, bottom - top) };
}

/** Draw strokes with round ends; a stroke of one point is a dot, which browsers need not draw as a line of no length. */
export function trace(context, strokes) {
  context.lineCap = context.lineJoin = "round";
  context.fillStyle = context.strokeStyle;
  for (const stroke of strokes) {
    const [first, ...others] = stroke;
    context.beginPath();
    if (others.every(([x, y]) => x === first[0] && y === first[1])) {
      context.arc(...first, context.lineWidth / 2, 0, 2 * Math.PI);
      context.fill();
    } else {
      context.moveTo(...first);
      for (const point of others) context.lineTo(...point);
      context.stroke();
    }
  }
}

/** Show rows of numbers on a canvas, in the colour of its text. */
export function paint(canvas, rows) {
  canvas.width = canvas.height = rows.length;
  const [red, green, blue] = getComputedStyle(canvas).color.match(/\d+/g).map(Number);
  const context = canvas.getContext("2d");
  const image = context.createImageData(rows.length, rows.length);
  rows.flat().forEach((value, index) => image.data.set([red, green, blue, value], 4 * index));
  context.putImageData(image, 0, 0);
}
