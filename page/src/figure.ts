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
  overlay?(paint: Painter, box: Box): void; // drawn last, on veils too
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

  straight(x: number, y: number, toX: number, toY: number, color: string, width: number, dash: number[] = []): void {
    const points: [number, number][] = [
      [x, y],
      [toX, toY],
    ];
    this.line(points, color, width, dash);
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
    const under = (spike: Spike) => boxes.slice(spike.lanes?.[0] ?? 0, (spike.lanes?.[1] ?? boxes.length - 1) + 1);
    for (const spike of view.spikes) this.veil(paint, spike, under(spike));
    view.lanes.forEach((lane, place) => {
      paint.title(lane.title, boxes[place]);
      lane.overlay?.(paint, boxes[place]);
    });
    for (const spike of view.spikes) this.flag(paint, spike, under(spike)[0], view.lanes[0].title);
    if (view.cursor !== null) {
      const x = paint.x(view.cursor);
      paint.straight(x, all.top, x, all.top + all.height, "ink", 1);
    }
  }

  private axis(paint: Painter, view: View, box: Box): void {
    const bottom = box.top + box.height;
    const room = box.left + box.width - 64; // the unit is on the right
    let free = 0;
    for (let tick = 0; tick <= view.length + 1e-9; tick += view.ticks) {
      const x = paint.x(tick);
      paint.straight(x, box.top, x, bottom, "grid", 1);
      if (x < free || (x > room && tick)) continue;
      paint.text(tick.toLocaleString("en"), x, bottom + 14, "muted", tick ? "center" : "left");
      free = x + 40;
    }
    const end = `${Math.round(view.length).toLocaleString("en")} ${view.unit}`;
    paint.text(end, box.left + box.width + MARGIN.right - 2, bottom + 14, "muted", "right");
  }

  private veil(paint: Painter, spike: Spike, boxes: Box[]): void {
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
        paint.straight(from, box.top + box.height, from + box.height, box.top, "hatch", 1);
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
    paint.straight(x, first.top - (spike.lanes ? 0 : 6), x, last.top + last.height, "spike", 2);
  }

  /** When it was, above the first lane and after its title, or in a later one beside the line, where no title is. */
  private flag(paint: Painter, spike: Spike, first: Box, title: string): void {
    const { context } = paint;
    const [x, right] = [paint.x(spike.at), first.left + first.width];
    context.font = FONT;
    const free = first.left + context.measureText(title).width + 8;
    context.font = `600 ${FONT}`;
    const width = context.measureText(spike.text).width + 14;
    const above = !spike.lanes;
    const beside = x + 8 + width < right ? x + 8 : x - 8 - width;
    const left = above ? Math.min(Math.max(x - width / 2, free), right - width + MARGIN.right) : beside;
    const top = above ? first.top - 20 : first.top + 6;
    context.fillStyle = paint.color("spike");
    context.beginPath();
    context.roundRect(left, top, width, 19, 9);
    context.fill();
    paint.text(spike.text, left + width / 2, top + 10, "on-spike", "center", true);
  }
}
