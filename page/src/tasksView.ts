// The paper's tasks: a rank-coded and a conventional network read the same sequence side by side.
import { drawCurve, type Line, type Point } from "./curve";
import { part, reducedMotion, say } from "./dom";
import { EXAMPLES, imageOf, spikeTimes, type Stroke } from "./digits";
import { Figure, type Lane, type Spike } from "./figure";
import { curvesLane } from "./lanes";
import { Model, type Reading } from "./model";
import { Pad } from "./pad";
import { decide, decision, type Decision } from "./rule";
import { Slider } from "./slider";
import { appearing, TASKS, type Task } from "./tasks";
import { percent, plural, theta as written } from "./text";

const BATCH = 500; // sequences that are played at once

export interface TaskNumbers {
  rows: number;
  ranked: Point[]; // time in steps
  conventional: { accuracy: number; time: number };
  limit: { accuracy: number; time: number }[];
}

interface Item {
  inputs: ArrayLike<number>[]; // by step
  label: number | null; // null: nobody has said what it is
  remark: string;
  lane(known: number): Lane;
}

export class TasksView {
  private name = "";
  private ranked: Model | null = null;
  private conventional: Model | null = null;
  private first: Reading | null = null; // of the rank-coded network
  private second: Reading | null = null;
  private item: Item | null = null;
  private shown = 0; // steps that have been played
  private theta = 0.95;
  private run = 0;
  private batches: { labels: number[]; first: Float32Array[]; second: Float32Array }[] = [];
  private working: Promise<void> = Promise.resolve();
  private readonly models = new Map<string, Promise<Model>>();
  private readonly figure: Figure;
  private readonly slider: Slider;
  private readonly pad: Pad;

  constructor(
    private readonly root: HTMLElement,
    private readonly numbers: Promise<Record<string, TaskNumbers>>,
  ) {
    this.figure = new Figure(part<HTMLCanvasElement>(root, "figure"));
    this.slider = new Slider(root, (theta) => void this.changeTheta(theta));
    for (const choice of root.querySelectorAll<HTMLInputElement>("input[name=task]"))
      choice.addEventListener("change", () => void this.choose(choice.value));
    part(root, "next").addEventListener("click", () => void this.next());
    part(root, "batch").addEventListener("click", () => void this.batch());
    part(root, "clear").addEventListener("click", () => this.clear());
    this.pad = new Pad(
      part<HTMLCanvasElement>(root, "pad"),
      () => this.shown && this.clear(), // the last digit was read: a new one begins
      () => this.drawn(),
    );
    this.examples();
    this.render();
  }

  private get task(): Task {
    return TASKS[this.name] ?? TASKS.spotting;
  }

  private get about() {
    return this.ranked!.about;
  }

  private model(name: string): Promise<Model> {
    const known = this.models.get(name) ?? Model.fetch(`models/${name}.onnx`);
    this.models.set(name, known);
    return known;
  }

  async choose(name: string): Promise<void> {
    const run = ++this.run;
    this.name = name;
    this.item = this.first = this.second = this.ranked = null;
    this.batches = [];
    this.shown = 0;
    this.pad.show([]);
    const { task, root } = this;
    say(part(root, "about"), task.about);
    say(part(root, "conventional-is"), task.conventionalIs);
    part(root, "drawing").hidden = Boolean(task.draw);
    part(root, "remark").hidden = !task.draw;
    part(root, "next").hidden = part(root, "batch").hidden = part(root, "tally").hidden = !task.draw;
    this.render();
    const [ranked, conventional, numbers] = await Promise.all([
      this.model(task.ranked),
      this.model(task.conventional),
      this.numbers,
    ]);
    if (run !== this.run) return;
    [this.ranked, this.conventional] = [ranked, conventional];
    this.theta = ranked.about.rule.threshold!;
    this.slider.offer(
      this.theta,
      numbers[name].ranked.map((point) => point.theta),
    );
    void this.curve();
    if (task.draw) await this.next();
    else this.example(EXAMPLES[3]);
  }

  // Sequences

  private async next(): Promise<void> {
    const { task } = this;
    const drawn = task.draw!();
    await this.play({
      inputs: drawn.values.map((value) => [value]),
      label: drawn.label,
      remark: drawn.remark,
      lane: (known) => task.lane!(drawn.values, known),
    });
  }

  /** Read an item step by step, as fast as it can be watched; the rank-coded network stops at its spike. */
  private async play(item: Item): Promise<void> {
    if (!this.ranked || !this.conventional) return;
    const run = ++this.run;
    this.item = item;
    this.first = this.ranked.begin();
    this.second = this.conventional.begin();
    for (this.shown = 0; this.shown < this.task.steps;) {
      const x = item.inputs[this.shown];
      await this.second.read(x);
      if (run !== this.run) return;
      this.shown += 1;
      await this.extend();
      if (run !== this.run) return;
      this.render();
      if (!reducedMotion()) await new Promise((done) => setTimeout(done, this.task.pause));
      if (run !== this.run) return;
    }
    this.render();
  }

  /** Let the rank-coded network read what was shown, up to its answer. */
  private extend(): Promise<void> {
    this.working = this.working.then(async () => {
      const { first, item } = this;
      while (first && item && first === this.first && !this.answer() && first.steps < this.shown)
        await first.read(item.inputs[first.steps]);
    });
    return this.working;
  }

  private answer(): Decision | null {
    const ended = this.first?.steps === this.task.steps;
    return this.first && decision(this.about, this.first, this.theta, ended);
  }

  private async changeTheta(theta: number): Promise<void> {
    this.theta = theta;
    await this.extend();
    this.render();
    void this.curve();
  }

  /** Many new sequences at once. */
  private async batch(): Promise<void> {
    const { ranked, conventional, task } = this;
    if (!ranked || !conventional) return;
    const drawn = Array.from({ length: BATCH }, task.draw!);
    const [first, second] = [ranked.begin(BATCH), conventional.begin(BATCH)];
    for (let step = 0; step < task.steps; step++) {
      const x = drawn.map((each) => each.values[step]);
      await first.read(x);
      await second.read(x);
    }
    if (ranked !== this.ranked) return;
    const labels = drawn.map((each) => each.label);
    this.batches.push({ labels, first: first.probabilities, second: second.probabilities[task.steps - 1] });
    this.render();
  }

  // Drawing

  private examples(): void {
    part(this.root, "examples").append(
      ...EXAMPLES.map((strokes, digit) => {
        const button = document.createElement("button");
        button.type = "button";
        button.textContent = String(digit);
        button.setAttribute("aria-label", `Draw a ${digit}`);
        button.addEventListener("click", () => this.example(strokes));
        return button;
      }),
    );
  }

  private example(strokes: Stroke[]): void {
    this.pad.show(strokes);
    this.drawn();
  }

  private clear(): void {
    this.run += 1;
    this.pad.show([]);
    this.item = this.first = this.second = null;
    this.shown = 0;
    this.render();
  }

  private drawn(): void {
    const image = imageOf(this.pad.strokes);
    if (!image || this.name !== "digits") return;
    const { steps } = this.task;
    const times = spikeTimes(image, steps);
    const inputs = Array.from({ length: steps }, (_, place) => times.map((time) => Number(time === place + 1)));
    void this.play({ inputs, label: null, remark: "", lane: (known) => appearing(image, times, known) });
  }

  // What is shown

  private named(label: number): string {
    return this.task.names?.[label] ?? this.ranked?.about.labels[label] ?? "";
  }

  private render(): void {
    const { task, first, second, shown, item, root } = this;
    const answer = first ? this.answer() : null;
    const end =
      second && shown === task.steps ? decide(this.conventional!.about, second.probabilities, [], 2, true) : null;
    const lane = (title: string, reading: Reading | null, answer: Decision | null, theta: number | null): Lane => {
      const now = reading?.probabilities[(answer?.steps ?? reading.steps) - 1];
      const leader = task.names ? 1 : now ? now.indexOf(Math.max(...now)) : null;
      return curvesLane(title, 92, {
        names: task.names ? ["", ""] : (this.ranked?.about.labels ?? []),
        values: task.names ? (reading?.probabilities ?? []).map((p) => [p[1], p[1]]) : (reading?.probabilities ?? []),
        at: (step) => step,
        leader,
        theta,
        dot: answer?.fired ? answer.steps : null,
        ...(task.names && theta !== null ? { floor: 0 } : {}),
      });
    };
    const spikes: Spike[] = answer?.fired
      ? [
          {
            at: answer.steps,
            text: `${answer.steps}`,
            lanes: [1, 1],
            veil: first!.steps > answer.steps ? "after the answer" : "never computed",
          },
        ]
      : [];
    const of = task.names ? ` of “${task.names[1]}”` : "";
    const silent: Lane = {
      title: task.draw ? "the sequence" : "the digit appears, darkest ink first",
      height: task.draw ? 44 : 64,
      draw: () => {},
    };
    if (this.name === "two-sequence") silent.height = 90;
    this.figure.show(
      {
        length: task.steps,
        unit: "steps",
        ticks: task.steps === 10 ? 1 : 5,
        lanes: [
          item?.lane(shown) ?? silent,
          lane(`rank-coded: how sure it is${of}`, first, answer, this.theta),
          lane(`conventional: how sure it is${of}`, second, end, null),
        ],
        spikes,
        cursor: shown && shown < task.steps ? shown : null,
      },
      answer
        ? `The rank-coded network answers ${this.named(answer.label)} after ${plural(answer.steps, "step")}.`
        : "The sequence and the probabilities of both networks.",
    );
    this.result("ranked", answer);
    this.result("conventional", end);
    say(
      part(root, "remark"),
      item && end && item.label !== null ? `The truth: ${this.named(item.label)}; ${item.remark}.` : " ",
    );
    const saved = answer && end ? `${percent(1 - answer.steps / task.steps)} of the steps were never computed.` : " ";
    say(
      part(root, "saved"),
      answer && first!.steps > answer.steps
        ? `${percent(1 - answer.steps / task.steps)} of the steps come after the answer; some were computed only for the slider.`
        : saved,
    );
    if (answer && end)
      say(
        part(root, "status"),
        `Rank-coded: ${this.named(answer.label)} after ${answer.steps} of ${task.steps} steps. Conventional: ${this.named(end.label)} after all ${task.steps}.`,
      );
    this.table(item);
    this.tally();
  }

  private result(name: string, answer: Decision | null): void {
    const row = part(this.root, name);
    const label = this.item?.label ?? null;
    row.dataset.steps = answer ? String(answer.steps) : "";
    row.dataset.label = answer ? String(answer.label) : "";
    const mark = !answer || label === null ? "" : answer.label === label ? ", right" : ", wrong";
    say(part(row, "said"), answer ? `${this.named(answer.label)}${mark}` : "…");
    say(part(row, "steps"), answer ? `${answer.steps} of ${this.task.steps}` : "…");
  }

  /** The numbers of generated sequences, for readers who do not see the picture. */
  private table(item: Item | null): void {
    const box = part(this.root, "numbers");
    box.hidden = !this.task.draw;
    const body = part(box, "rows");
    if (!item || !this.task.draw || this.shown < this.task.steps) return body.replaceChildren();
    const [first, second] = [this.first!.probabilities, this.second!.probabilities];
    body.replaceChildren(
      ...item.inputs.map((x, place) => {
        const row = document.createElement("tr");
        const cells = [place + 1, x[0], first[place]?.[1].toFixed(4) ?? "not computed", second[place][1].toFixed(4)];
        row.append(...cells.map((text) => Object.assign(document.createElement("td"), { textContent: String(text) })));
        return row;
      }),
    );
  }

  private tally(): void {
    const [box, { steps }] = [part(this.root, "tally"), this.task];
    let [count, firstRight, secondRight, read] = [0, 0, 0, 0];
    for (const { labels, first, second } of this.batches)
      labels.forEach((label, row) => {
        const own = first.map((values) => values.subarray(2 * row, 2 * row + 2));
        const answer = decide(this.about, own, [], this.theta, true)!;
        count += 1;
        read += answer.steps;
        firstRight += Number(answer.label === label);
        secondRight += Number(Number(second[2 * row + 1] > second[2 * row]) === label);
      });
    const text = count
      ? `${count.toLocaleString("en")} sequences at θ = ${written(this.theta)}: rank-coded ${percent(firstRight / count, 1)} right after ${(read / count).toFixed(1)} steps on average, conventional ${percent(secondRight / count, 1)} after ${steps}. ${percent(1 - read / count / steps)} of the computation saved.`
      : `Play ${BATCH} sequences at once to see how both do on average.`;
    say(box, text);
  }

  private async curve(): Promise<void> {
    const numbers = (await this.numbers)[this.name];
    const current = numbers.ranked.find((point) => point.theta === this.theta) ?? null;
    const lines: Line[] = [
      { name: "ideal observer", kind: "limit", points: numbers.limit },
      { name: "conventional", kind: "other", points: [numbers.conventional] },
      { name: "rank-coded", kind: "ours", points: numbers.ranked },
    ];
    part(this.root, "key-limit").hidden = !numbers.limit.length;
    const text = current
      ? `At θ = ${written(current.theta)}: ${percent(current.accuracy, 1)} right after ${current.time.toFixed(1)} steps on average. To the end: ${percent(numbers.conventional.accuracy, 1)} after ${numbers.conventional.time}.`
      : "";
    say(part(this.root, "curve-text"), `${text} Measured on ${numbers.rows.toLocaleString("en")} test ${this.task.draw ? "sequences" : "images"}.`);
    drawCurve(
      part<SVGSVGElement>(this.root, "curve"),
      lines,
      current,
      "steps read",
      `Accuracy against steps read. ${text}`,
    );
  }
}
