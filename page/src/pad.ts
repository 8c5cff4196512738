// A field to draw in, with a finger, a pen or the mouse.
import type { Stroke } from "./digits";

const PAUSE = 700; // milliseconds after a stroke in which another may follow
const PEN = 0.075; // share of the width

export class Pad {
  strokes: Stroke[] = [];

  /** `begun` is called before a stroke, `drawn` some time after the last one. */
  constructor(
    private readonly canvas: HTMLCanvasElement,
    begun: () => void,
    drawn: () => void,
  ) {
    let drawing = false;
    let timer = 0;
    const at = (event: PointerEvent): [number, number] => [
      event.offsetX / canvas.clientWidth,
      event.offsetY / canvas.clientHeight,
    ];
    canvas.addEventListener("pointerdown", (event) => {
      drawing = true;
      clearTimeout(timer);
      canvas.setPointerCapture(event.pointerId);
      begun();
      this.show([...this.strokes, [at(event)]]);
    });
    canvas.addEventListener("pointermove", (event) => {
      if (!drawing) return;
      this.strokes[this.strokes.length - 1].push(at(event));
      this.paint();
    });
    const end = () => {
      if (drawing) timer = window.setTimeout(drawn, PAUSE);
      drawing = false;
    };
    canvas.addEventListener("pointerup", end);
    canvas.addEventListener("pointercancel", end);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.paint());
  }

  show(strokes: Stroke[]): void {
    this.strokes = strokes;
    this.paint();
  }

  private paint(): void {
    const { canvas } = this;
    const context = canvas.getContext("2d")!;
    context.clearRect(0, 0, canvas.width, canvas.height);
    context.strokeStyle = getComputedStyle(canvas).getPropertyValue("--data");
    context.lineWidth = PEN * canvas.width;
    context.lineCap = context.lineJoin = "round";
    for (const stroke of this.strokes) {
      context.beginPath();
      stroke.forEach(([x, y]) => context.lineTo(x * canvas.width, y * canvas.height));
      if (stroke.length === 1) context.lineTo(stroke[0][0] * canvas.width + 0.1, stroke[0][1] * canvas.height);
      context.stroke();
    }
  }
}
