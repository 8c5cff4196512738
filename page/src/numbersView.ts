// A network that reads numbers: a series from a file or the clipboard, read step by step.
import { acceptFiles, message, part, reducedMotion, say } from "./dom";
import { Figure } from "./figure";
import { curvesLane, linesLane } from "./lanes";
import { size, type Model, type Reading } from "./model";
import { decision, hasThreshold, type Decision } from "./rule";
import { Slider } from "./slider";
import { percent, plural, theta as written } from "./text";

const MAX_STEPS = 20_000;
const MAX_BYTES = 20e6;
const ANIMATION_SECONDS = 2;
const MISSING = new Set(["", "nan", "na", "null", "none", "?"]);

/** Steps of so many numbers: one a line, or all in one line where a step is one number. A first line of names is left out. */
export function parseSteps(text: string, width: number): Float64Array[] {
  const lines = text.split(/\r?\n/).filter((line) => line.trim());
  if (!lines.length) throw new Error("There are no numbers yet.");
  const cells = (line: string): string[] =>
    (/[,;\t]/.test(line) ? line.split(/[,;\t]/) : line.trim().split(/\s+/)).map((cell) => cell.trim());
  const value = (cell: string): number | null => {
    if (MISSING.has(cell.toLowerCase())) return NaN;
    const number = Number(cell);
    return Number.isFinite(number) ? number : null;
  };
  let rows = lines.map(cells);
  const isNames = rows[0].some((cell) => value(cell) === null) && !rows[0].some((cell) => /^[-+.\d]/.test(cell));
  if (rows.length > 1 && isNames) rows = rows.slice(1);
  if (width === 1 && rows.length === 1) rows = rows[0].map((cell) => [cell]);
  if (rows.length > MAX_STEPS)
    throw new Error(
      `There are ${rows.length.toLocaleString("en")} steps: more than ${MAX_STEPS.toLocaleString("en")} are too many here.`,
    );
  return rows.map((row, place) => {
    if (row.length !== width)
      throw new Error(`Line ${place + 1} has ${plural(row.length, "number")}, and the network reads ${width} a step.`);
    return Float64Array.from(row, (cell) => {
      const number = value(cell);
      if (number === null) throw new Error(`Line ${place + 1}: “${cell.slice(0, 20)}” is not a number.`);
      return number;
    });
  });
}

export class NumbersView {
  private series: Float64Array[] = [];
  private reading: Reading | null = null;
  private decided: Decision | null = null;
  private theta: number | null = null;
  private run = 0;
  private readonly figure: Figure;

  constructor(
    private readonly root: HTMLElement,
    private readonly model: Model,
  ) {
    this.figure = new Figure(part<HTMLCanvasElement>(root, "figure"));
    const { about } = model;
    const slider = new Slider(root, (theta) => {
      this.theta = theta;
      void this.advance(this.run, this.series.length).then(() => this.render());
    });
    part(root, "settings").hidden = !hasThreshold(about);
    if (hasThreshold(about)) slider.offer((this.theta = about.rule.threshold!));
    const width = size(about.x.shape);
    say(
      part(root, "hint"),
      width === 1
        ? "One number a step: one a line, or all in one line."
        : `One step a line: ${width} numbers, with commas, semicolons, tabs or spaces between them.`,
    );
    const text = part<HTMLTextAreaElement>(root, "text");
    part(root, "read").addEventListener("click", () => void this.read(text.value));
    part(root, "choose").addEventListener("click", () => part(root, "file").click());
    acceptFiles(root, part<HTMLInputElement>(root, "file"), (file) => {
      if (file.size > MAX_BYTES) return this.fail(`${file.name} is larger than 20 MB.`);
      void file.text().then((content) => {
        text.value = content.length < 1e5 ? content : "";
        return this.read(content);
      });
    });
    this.render();
  }

  private fail(text: string): void {
    say(part(this.root, "error"), text);
  }

  private async read(text: string): Promise<void> {
    this.fail("");
    try {
      const { about } = this.model;
      const series = parseSteps(text, size(about.x.shape));
      if (!about.x.raw && series.some((row) => row.some(Number.isNaN)))
        throw new Error("This network cannot read missing values.");
      const run = ++this.run;
      this.series = series;
      this.reading = this.model.begin();
      this.decided = null;
      const perFrame = reducedMotion() ? series.length : Math.ceil(series.length / (60 * ANIMATION_SECONDS));
      for (let known = 0; known < series.length && run === this.run && !this.decided;) {
        known = Math.min(series.length, known + perFrame);
        await this.advance(run, known);
        this.render();
        await new Promise(requestAnimationFrame);
      }
    } catch (error) {
      this.fail(message(error));
    }
  }

  /** Read up to so many steps, or to the answer. */
  private async advance(run: number, known: number): Promise<void> {
    const { reading, model, series } = this;
    if (!reading) return;
    for (;;) {
      this.decided = decision(model.about, reading, this.theta, reading.steps === series.length);
      if (this.decided || reading.steps >= known || run !== this.run) return;
      await reading.read(series[reading.steps]);
    }
  }

  private render(): void {
    const { model, reading, decided, root } = this;
    const length = Math.max(this.series.length, 10);
    const steps = decided?.steps ?? reading?.steps ?? 0;
    const values = reading?.probabilities[steps - 1];
    const at = (step: number) => step;
    const box = part(root, "answer");
    const word = decided ? model.about.labels[decided.label] : this.series.length ? "…" : "–";
    say(part(root, "word"), word);
    say(part(root, "clock"), String(steps));
    say(part(root, "saved"), decided ? percent(1 - decided.steps / this.series.length) : "–");
    box.classList.toggle("decided", decided !== null);
    box.dataset.label = decided ? word : "";
    box.dataset.steps = String(decided?.steps ?? "");
    const extra = decided && reading!.steps > decided.steps;
    const rule = this.theta === null ? "" : ` at θ = ${written(this.theta)}`;
    say(
      part(root, "status"),
      !decided
        ? ""
        : decided.fired
          ? `“${word}” after ${decided.steps} of ${plural(this.series.length, "step")}${rule}, ${percent(decided.probability, 1)} sure.`
          : `Never sure enough${rule}. At the end it takes “${word}” (${percent(decided.probability)}).`,
    );
    this.figure.show(
      {
        length,
        unit: "steps",
        ticks:
          10 ** Math.floor(Math.log10(length / 2)) * (length / 10 ** Math.floor(Math.log10(length / 2)) > 10 ? 5 : 1),
        lanes: [
          linesLane("the numbers", this.series.slice(0, decided ? undefined : steps), at),
          curvesLane("how sure it is of each class", 130, {
            names: model.about.labels,
            values: reading?.probabilities ?? [],
            at,
            leader: decided?.label ?? (values ? values.indexOf(Math.max(...values)) : null),
            theta: this.theta,
            dot: decided?.fired ? decided.steps : null,
          }),
        ],
        spikes: decided?.fired
          ? [{ at: decided.steps, text: `step ${decided.steps}`, veil: extra ? "after the answer" : "never computed" }]
          : [],
        cursor: null,
      },
      decided ? (part(root, "status").textContent ?? "") : "The numbers and the probability of each class.",
    );
  }
}
