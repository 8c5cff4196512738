// The speed–accuracy curve as SVG, with the current point on it.

export interface Point {
  theta: number;
  accuracy: number;
  time: number;
}

export interface Line {
  name: string;
  kind: "ours" | "other" | "limit";
  points: { accuracy: number; time: number }[];
}

const NS = "http://www.w3.org/2000/svg";
const [WIDTH, HEIGHT] = [320, 200];
const BOX = { left: 44, right: 12, top: 12, bottom: 34 };

function add(parent: Element, name: string, attributes: Record<string, string | number>, text = ""): SVGElement {
  const made = document.createElementNS(NS, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, String(value));
  made.textContent = text;
  parent.append(made);
  return made;
}

/** Round steps that divide a range into about four. */
function ticks(low: number, high: number): number[] {
  const rough = (high - low) / 4;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((each) => each * power).find((each) => each >= rough) ?? rough;
  const first = Math.ceil(low / step - 1e-9);
  return Array.from({ length: Math.floor(high / step + 1e-9) - first + 1 }, (_, place) => (first + place) * step);
}

export function drawCurve(
  svg: SVGSVGElement,
  lines: Line[],
  current: { accuracy: number; time: number } | null,
  unit: string,
  description: string,
): void {
  svg.replaceChildren();
  svg.setAttribute("viewBox", `0 0 ${WIDTH} ${HEIGHT}`);
  svg.setAttribute("aria-label", description);
  const points = lines.flatMap((line) => line.points);
  if (!points.length) return;
  const low = Math.min(...points.map((point) => point.accuracy));
  const [times, bottom] = [points.map((point) => point.time), Math.max(0, low - 0.02)];
  const [first, last] = [0, Math.max(...times) * 1.04];
  const x = (time: number) => BOX.left + ((time - first) / (last - first)) * (WIDTH - BOX.left - BOX.right);
  const y = (accuracy: number) =>
    HEIGHT - BOX.bottom - ((accuracy - bottom) / (1 - bottom)) * (HEIGHT - BOX.top - BOX.bottom);
  for (const value of ticks(bottom, 1)) {
    add(svg, "line", { x1: BOX.left, x2: WIDTH - BOX.right, y1: y(value), y2: y(value), class: "grid" });
    add(svg, "text", { x: BOX.left - 6, y: y(value) + 4, class: "end" }, `${Math.round(100 * value)} %`);
  }
  for (const value of ticks(first, last))
    add(svg, "text", { x: x(value), y: HEIGHT - 18, class: "mid" }, value.toLocaleString("en"));
  add(svg, "text", { x: WIDTH - BOX.right, y: HEIGHT - 4, class: "end" }, `${unit} →`);
  for (const line of lines) {
    const path = line.points.map((point) => `${x(point.time)},${y(point.accuracy)}`).join(" ");
    add(svg, "polyline", { points: path, class: `line ${line.kind}` });
    if (line.kind === "ours")
      for (const point of line.points)
        add(svg, "circle", { cx: x(point.time), cy: y(point.accuracy), r: 1.8, class: "dot" });
    if (line.points.length === 1) {
      const [point] = line.points;
      add(svg, "circle", { cx: x(point.time), cy: y(point.accuracy), r: 4.5, class: `mark ${line.kind}` });
    }
  }
  if (!current) return;
  const [cx, cy] = [x(current.time), y(current.accuracy)];
  add(svg, "line", { x1: cx, x2: cx, y1: cy, y2: HEIGHT - BOX.bottom, class: "drop" });
  add(svg, "circle", { cx, cy, r: 6, class: "current" });
}
