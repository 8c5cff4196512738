// The slider of θ, which all views have a copy of: positions are thresholds of a list, which lie closer together near 1.
import { part, say } from "./dom";
import { theta as written } from "./text";

const THETAS = [
  0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9, 0.92, 0.94, 0.95, 0.96, 0.97, 0.98, 0.985, 0.99, 0.995, 0.998, 0.999,
];

export class Slider {
  private readonly input: HTMLInputElement;
  private thetas: number[] = [];

  constructor(
    private readonly root: HTMLElement,
    private readonly changed: (theta: number) => void,
  ) {
    const settings = part(root, "settings");
    if (!settings.childElementCount) settings.append(...part(document, "settings").cloneNode(true).childNodes);
    this.input = part<HTMLInputElement>(root, "theta");
    this.input.disabled = true;
    this.input.addEventListener("input", () => {
      this.label();
      this.changed(this.value);
    });
  }

  /** Offer these thresholds, and choose one of them; `own` is added where it is missing. */
  offer(own: number, thetas: number[] = THETAS): void {
    this.thetas = [...new Set([...thetas, own])].sort((a, b) => a - b);
    this.input.max = String(this.thetas.length - 1);
    this.value = own;
    this.input.disabled = false;
  }

  get value(): number {
    return this.thetas[Number(this.input.value)];
  }

  set value(theta: number) {
    this.input.value = String(this.thetas.indexOf(theta));
    this.label();
  }

  private label(): void {
    const text = written(this.value);
    say(part(this.root, "theta-value"), text);
    this.input.setAttribute("aria-valuetext", text);
  }
}
