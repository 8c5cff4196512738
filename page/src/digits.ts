// Digits drawn by hand: strokes to images as in MNIST, and images to steps.

export type Stroke = [x: number, y: number][]; // in 0…1

export const SIDE = 28;
const INNER = 20; // pixels of the larger side of a digit, as in MNIST
const FINE = 4; // drawn at this scale and averaged
const PEN = 2.1; // pixels

const arc = (x: number, y: number, rx: number, ry: number, from: number, to: number): Stroke =>
  Array.from({ length: 25 }, (_, place) => {
    const angle = ((from + ((to - from) * place) / 24) * Math.PI) / 180;
    return [x + rx * Math.cos(angle), y + ry * Math.sin(angle)];
  });

/** A digit of each kind to begin with. */
export const EXAMPLES: Stroke[][] = [
  [arc(0.5, 0.5, 0.24, 0.36, -90, 270)],
  [
    [
      [0.55, 0.14],
      [0.47, 0.86],
    ],
  ],
  [[...arc(0.48, 0.34, 0.22, 0.2, -170, 40), [0.3, 0.84], [0.74, 0.82]]],
  [[...arc(0.48, 0.32, 0.2, 0.17, -150, 90), ...arc(0.48, 0.67, 0.23, 0.18, -90, 150)]],
  [
    [
      [0.58, 0.14],
      [0.26, 0.6],
      [0.76, 0.58],
    ],
    [
      [0.62, 0.36],
      [0.58, 0.88],
    ],
  ],
  [[[0.7, 0.15], [0.36, 0.17], [0.33, 0.45], ...arc(0.48, 0.64, 0.22, 0.21, -110, 150)]],
  [[[0.62, 0.13], [0.42, 0.36], ...arc(0.5, 0.66, 0.2, 0.2, -170, 190)]],
  [
    [
      [0.26, 0.18],
      [0.72, 0.17],
      [0.58, 0.5],
      [0.47, 0.86],
    ],
  ],
  [[...arc(0.5, 0.32, 0.17, 0.17, 90, -270), ...arc(0.5, 0.68, 0.21, 0.19, -90, 270)]],
  [[...arc(0.49, 0.34, 0.19, 0.19, 0, -360), [0.66, 0.5], [0.6, 0.86]]],
];

/** An image of bytes as MNIST has them: 20 pixels large, its centre of mass in the middle. Null: nothing is drawn. */
export function imageOf(strokes: Stroke[]): Uint8Array | null {
  const points = strokes.flat();
  if (!points.length) return null;
  const [xs, ys] = [points.map(([x]) => x), points.map(([, y]) => y)];
  const [left, top] = [Math.min(...xs), Math.min(...ys)];
  const scale = (INNER - PEN) / Math.max(Math.max(...xs) - left, Math.max(...ys) - top, 0.05);
  const first = draw(
    strokes,
    (x) => (x - left) * scale + 4,
    (y) => (y - top) * scale + 4,
  );
  let [mass, x, y] = [0, 0, 0];
  first.forEach((value, place) => {
    mass += value;
    x += value * (place % SIDE);
    y += value * Math.floor(place / SIDE);
  });
  const [right, down] = [SIDE / 2 - 0.5 - x / mass, SIDE / 2 - 0.5 - y / mass];
  return draw(
    strokes,
    (at) => (at - left) * scale + 4 + right,
    (at) => (at - top) * scale + 4 + down,
  );
}

function draw(strokes: Stroke[], x: (at: number) => number, y: (at: number) => number): Uint8Array {
  const context = new OffscreenCanvas(SIDE * FINE, SIDE * FINE).getContext("2d", { willReadFrequently: true })!;
  context.lineWidth = PEN * FINE;
  context.lineCap = context.lineJoin = "round";
  for (const stroke of strokes) {
    context.beginPath();
    stroke.forEach((point, place) => {
      const [across, down] = [FINE * (x(point[0]) + 0.5), FINE * (y(point[1]) + 0.5)];
      if (place === 0) context.moveTo(across, down);
      context.lineTo(across, down + (stroke.length === 1 ? 0.01 : 0));
    });
    context.stroke();
  }
  const { data } = context.getImageData(0, 0, SIDE * FINE, SIDE * FINE);
  return Uint8Array.from({ length: SIDE * SIDE }, (_, place) => {
    const [row, column] = [Math.floor(place / SIDE) * FINE, (place % SIDE) * FINE];
    let sum = 0;
    for (let down = 0; down < FINE; down++)
      for (let across = 0; across < FINE; across++) sum += data[4 * ((row + down) * SIDE * FINE + column + across) + 3];
    return Math.min(255, Math.round((1.15 * sum) / FINE ** 2)); // ink in MNIST is saturated
  });
}

/** The step, 1…steps, at which each pixel appears: dark ink first, no ink last. */
export function spikeTimes(image: Uint8Array, steps: number): number[] {
  return Array.from(image, (value) => Math.min(steps, steps - Math.ceil((steps * value) / 255) + 1));
}
