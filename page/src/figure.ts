// Pictures over time on a canvas: lanes that share an axis, a spike through all of them, and a veil over what came after.

export interface Box {
  left: number;
  top: number;
  width: number;
  height: number;
}

export interface Lane {
  title: string;
  height: number;
  draw(paint: Painter, box: Box): void;
}

export interface Spike {
  at: number; // on the axis
  text: string;
  lanes?: [first: number, last: number]; // default: all
  veil: string; // says what is under the veil
}

export interface View {
  length: number; // of the axis
  unit: string;
  ticks: number;
  lanes: Lane[];
  spikes: Spike[];
  cursor: number | null; // how far reading has come
}

const MARGIN = { left: 6, right: 10, top: 20, bottom: 26 };
const GAP = 22; // between lanes, for their titles
const FONT = '12px system-ui, -apple-system, "Segoe UI", sans-serif';

/** Drawing with the colours of the page. */
export class Painter {
  private readonly style: CSSStyleDeclaration;

  constructor(
    readonly context: CanvasRenderingContext2D,
    private readonly length: number,
    private readonly box: Box,
  ) {
    this.style = getComputedStyle(context.canvas);
  }

  color(name: string): string {
    return this.style.getPropertyValue(`--${name}`).trim();
  }

  x(at: number): number {
    return this.box.left + (Math.min(at, this.length) / this.length) * this.box.width;
  }

  text(text: string, x: number, y: number, color = "muted", align: CanvasTextAlign = "left", bold = false): void {
    const { context } = this;
    context.font = bold ? `600 ${FONT}` : FONT;
    context.fillStyle = this.color(color);
    context.textAlign = align;
    context.textBaseline = "middle";
    context.fillText(text, x, y);
  }

  /** The title of a lane, readable on whatever is behind it. */
  title(text: string, box: Box): void {
    const { context } = this;
    context.font = FONT;
    context.textAlign = "left";
    context.textBaseline = "middle";
    context.lineWidth = 5;
    context.lineJoin = "round";
    context.strokeStyle = this.color("card");
    context.strokeText(text, box.left, box.top - 11);
    this.text(text, box.left, box.top - 11);
  }

  line(points: [number, number][], color: string, width: number, dash: number[] = []): void {
    const { context } = this;
    if (!points.length) return;
    context.beginPath();
    points.forEach(([x, y], place) => (place ? context.lineTo(x, y) : context.moveTo(x, y)));
    context.strokeStyle = this.color(color);
    context.lineWidth = width;
    context.lineJoin = "round";
    context.setLineDash(dash);
    context.stroke();
    context.setLineDash([]);
  }
}

export class Figure {
  private view: View | null = null;
  private waiting = false;

  constructor(private readonly canvas: HTMLCanvasElement) {
    new ResizeObserver(() => this.draw()).observe(canvas);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw());
  }

  /** Show this at the next frame. */
  show(view: View, description: string): void {
    this.view = view;
    this.canvas.setAttribute("aria-label", description);
    if (this.waiting) return;
    this.waiting = true;
    requestAnimationFrame(() => {
      this.waiting = false;
      this.draw();
    });
  }

  private draw(): void {
    const { canvas, view } = this;
    const context = canvas.getContext("2d");
    const width = canvas.clientWidth;
    if (!context || !view || width === 0) return;
    const lanesHeight = view.lanes.reduce((sum, lane) => sum + lane.height + GAP, -GAP);
    const height = MARGIN.top + lanesHeight + MARGIN.bottom;
    const scale = devicePixelRatio;
    if (canvas.style.height !== `${height}px`) canvas.style.height = `${height}px`;
    if (canvas.width !== Math.round(width * scale) || canvas.height !== Math.round(height * scale)) {
      canvas.width = Math.round(width * scale);
      canvas.height = Math.round(height * scale);
    }
    context.setTransform(scale, 0, 0, scale, 0, 0);
    context.clearRect(0, 0, width, height);
    const inner = width - MARGIN.left - MARGIN.right;
    const all = { left: MARGIN.left, top: MARGIN.top, width: inner, height: lanesHeight };
    const paint = new Painter(context, view.length, all);
    this.axis(paint, view, all);
    const boxes: Box[] = [];
    let top = MARGIN.top;
    for (const lane of view.lanes) {
      const box = { left: MARGIN.left, top, width: inner, height: lane.height };
      context.save();
      lane.draw(paint, box);
      context.restore();
      boxes.push(box);
      top += lane.height + GAP;
    }
    for (const spike of view.spikes) {
      const [first, last] = spike.lanes ?? [0, boxes.length - 1];
      this.spike(paint, spike, boxes.slice(first, last + 1));
    }
    view.lanes.forEach((lane, place) => paint.title(lane.title, boxes[place]));
    if (view.cursor !== null) {
      const x = paint.x(view.cursor);
      paint.line([[x, all.top], [x, all.top + all.height]], "ink", 1); // prettier-ignore
    }
  }

  private axis(paint: Painter, view: View, box: Box): void {
    const bottom = box.top + box.height;
    const room = box.left + box.width - 64; // the unit is on the right
    let free = 0;
    for (let tick = 0; tick <= view.length + 1e-9; tick += view.ticks) {
      const x = paint.x(tick);
      paint.line([[x, box.top], [x, bottom]], "grid", 1); // prettier-ignore
      if (x < free || (x > room && tick)) continue;
      paint.text(tick.toLocaleString("en"), x, bottom + 14, "muted", tick ? "center" : "left");
      free = x + 40;
    }
    const end = `${Math.round(view.length).toLocaleString("en")} ${view.unit}`;
    paint.text(end, box.left + box.width + MARGIN.right - 2, bottom + 14, "muted", "right");
  }

  private spike(paint: Painter, spike: Spike, boxes: Box[]): void {
    const { context } = paint;
    const x = paint.x(spike.at);
    const [first, last] = [boxes[0], boxes[boxes.length - 1]];
    const right = first.left + first.width;
    for (const box of boxes) {
      context.save();
      context.beginPath();
      context.rect(x, box.top, right - x, box.height);
      context.clip();
      context.fillStyle = paint.color("veil");
      context.fillRect(x, box.top, right - x, box.height);
      for (let from = x - box.height; from < right; from += 9)
        paint.line([[from, box.top + box.height], [from + box.height, box.top]], "hatch", 1); // prettier-ignore
      context.restore();
    }
    const middle = boxes[Math.floor(boxes.length / 2)];
    context.font = FONT;
    if (spike.veil && right - x > context.measureText(spike.veil).width + 24) {
      const [centre, y] = [(x + right) / 2, middle.top + middle.height / 2];
      const wide = context.measureText(spike.veil).width + 16;
      context.fillStyle = paint.color("card");
      context.beginPath();
      context.roundRect(centre - wide / 2, y - 11, wide, 22, 11);
      context.fill();
      paint.text(spike.veil, centre, y, "muted", "center");
    }
    paint.line([[x, first.top - (spike.lanes ? 0 : 6)], [x, last.top + last.height]], "spike", 2); // prettier-ignore
    context.font = `600 ${FONT}`;
    const width = context.measureText(spike.text).width + 14;
    // Above the first lane, or in a later one beside the line, where no title is.
    const above = !spike.lanes;
    const beside = x + 8 + width < right ? x + 8 : x - 8 - width;
    const left = above ? Math.min(Math.max(x - width / 2, first.left), right - width + MARGIN.right) : beside;
    const top = above ? first.top - 20 : first.top + 6;
    context.fillStyle = paint.color("spike");
    context.beginPath();
    context.roundRect(left, top, width, 19, 9);
    context.fill();
    paint.text(spike.text, left + width / 2, top + 10, "on-spike", "center", true);
  }
}

// Lanes

/** A waveform, up to `known` samples; the axis is in milliseconds. */
export function waveLane(title: string, samples: Float32Array, rate: number): Lane {
  return {
    title,
    height: 64,
    draw: (paint, box) => {
      const { context } = paint;
      const middle = box.top + box.height / 2;
      paint.line([[box.left, middle], [box.left + box.width, middle]], "grid", 1); // prettier-ignore
      if (!samples.length) return;
      const loudest = samples.reduce((most, value) => Math.max(most, Math.abs(value)), 0.05);
      context.fillStyle = paint.color("data");
      const perPixel = Math.max(1, (rate / 1000) * (1 / (paint.x(1) - paint.x(0))));
      for (let pixel = 0; pixel * perPixel < samples.length && pixel < box.width; pixel++) {
        const part = samples.subarray(Math.floor(pixel * perPixel), Math.ceil((pixel + 1) * perPixel));
        const most = part.reduce((found, value) => Math.max(found, Math.abs(value)), 0);
        const half = Math.max(0.6, (most / loudest) * (box.height / 2));
        context.fillRect(box.left + pixel, middle - half, 1, 2 * half);
      }
    },
  };
}

const channels = (color: string): number[] =>
  [1, 3, 5].map((at) => parseInt(color.slice(at, at + 2), 16)); // "#rrggbb"

const [DARK, LIGHT] = [0.3, 0.9]; // of a frame's values, the range in which speech is

/** Frames of values in 0…1, the lowest band at the bottom; each is `spacing` wide on the axis. */
export function heatLane(title: string, frames: Float32Array[], spacing: number): Lane {
  return {
    title,
    height: 84,
    draw: (paint, box) => {
      const { context } = paint;
      context.fillStyle = paint.color("lane");
      context.fillRect(box.left, box.top, box.width, box.height);
      if (!frames.length) return;
      const bands = frames[0].length;
      const stops = ["heat-0", "heat-1", "heat-2"].map((name) => channels(paint.color(name)));
      const image = context.createImageData(frames.length, bands);
      frames.forEach((frame, column) =>
        frame.forEach((value, band) => {
          const at = 2 * Math.min(0.999, Math.max(0, (value - DARK) / (LIGHT - DARK)));
          const [low, high] = [stops[Math.floor(at)], stops[Math.floor(at) + 1]];
          const place = 4 * ((bands - 1 - band) * frames.length + column);
          low.forEach((part, k) => (image.data[place + k] = part + (high[k] - part) * (at % 1)));
          image.data[place + 3] = 255;
        }),
      );
      const small = new OffscreenCanvas(frames.length, bands);
      small.getContext("2d")?.putImageData(image, 0, 0);
      context.beginPath();
      context.rect(box.left, box.top, box.width, box.height);
      context.clip();
      context.imageSmoothingEnabled = false;
      const left = paint.x(0) - (paint.x(spacing) - paint.x(0)) / 2;
      const right = left + frames.length * (paint.x(spacing) - paint.x(0));
      context.drawImage(small, left, box.top, right - left, box.height);
    },
  };
}

export interface Curves {
  names: string[];
  values: ArrayLike<number>[]; // by step
  at: (step: number) => number; // place of a step, 1…, on the axis
  leader: number | null; // the line to emphasise
  theta: number | null;
  dot: number | null; // the step of the spike
  floor?: number; // also a threshold at 1 − θ, of the class named here
}

/** Probabilities of classes over time. */
export function curvesLane(title: string, height: number, curves: Curves): Lane {
  return {
    title,
    height,
    draw: (paint, box) => {
      const { context } = paint;
      const y = (value: number) => box.top + box.height * (1 - value);
      context.fillStyle = paint.color("lane");
      context.fillRect(box.left, box.top, box.width, box.height);
      if (curves.theta !== null)
        for (const limit of curves.floor === undefined ? [curves.theta] : [curves.theta, 1 - curves.theta])
          paint.line([[box.left, y(limit)], [box.left + box.width, y(limit)]], "spike", 1, [4, 4]); // prettier-ignore
      const line = (label: number) =>
        curves.values.map((values, place): [number, number] => [paint.x(curves.at(place + 1)), y(values[label])]);
      curves.names.forEach((_, label) => {
        if (label !== curves.leader) paint.line(line(label), "faint", 1.2);
      });
      const { leader } = curves;
      if (leader === null || !curves.values.length) return;
      const points = line(leader);
      paint.line(points, "data", 2.4);
      const at = curves.dot === null ? points.length - 1 : curves.dot - 1;
      const [x, top] = points[at];
      context.fillStyle = paint.color(curves.dot === null ? "data" : "spike");
      context.beginPath();
      context.arc(x, top, curves.dot === null ? 3 : 5, 0, 2 * Math.PI);
      context.fill();
      const isLeft = x - box.left < context.measureText(curves.names[leader]).width + 24;
      const beside = Math.min(top + (top < box.top + box.height / 2 ? 18 : -16), box.top + box.height - 10);
      const color = curves.dot === null ? "ink" : "spike";
      paint.text(curves.names[leader], x + (isLeft ? 10 : -9), beside, color, isLeft ? "left" : "right", true);
    },
  };
}

/** One value a step, as a bar from the middle; steps that were not read are pale. */
export function barsLane(title: string, values: number[], known: number, most: number): Lane {
  return {
    title,
    height: 90,
    draw: (paint, box) => {
      const { context } = paint;
      const middle = box.top + box.height / 2;
      paint.line([[box.left, middle], [box.left + box.width, middle]], "muted", 1); // prettier-ignore
      values.slice(0, known).forEach((value, place) => {
        const [left, right] = [paint.x(place), paint.x(place + 1)];
        const height = Math.max(-1, Math.min(1, value / most)) * (box.height / 2);
        context.fillStyle = paint.color(value >= 0 ? "data" : "data-2");
        context.fillRect(left + 1, Math.min(middle, middle - height), Math.max(1, right - left - 2), Math.abs(height));
      });
    },
  };
}

/** Lines of one or several values a step. */
export function linesLane(title: string, values: ArrayLike<number>[], at: (step: number) => number): Lane {
  return {
    title,
    height: 110,
    draw: (paint, box) => {
      const { context } = paint;
      context.fillStyle = paint.color("lane");
      context.fillRect(box.left, box.top, box.width, box.height);
      const width = values[0]?.length ?? 0;
      for (let channel = 0; channel < Math.min(width, 24); channel++) {
        const known = values.map((row) => row[channel]).filter(Number.isFinite);
        const [low, high] = [Math.min(...known), Math.max(...known)];
        const y = (value: number) => box.top + 6 + (box.height - 12) * (1 - (value - low) / (high - low || 1));
        const points = values.flatMap((row, place): [number, number][] =>
          Number.isFinite(row[channel]) ? [[paint.x(at(place + 1)), y(row[channel])]] : [],
        );
        paint.line(points, channel ? "faint" : "data", 1.6);
      }
    },
  };
}
