// A network that reads sound: speak or open a recording, see it being read, and when it answers.
import { drawCurve, type Point } from "./curve";
import { acceptFiles, message, part, reducedMotion, say } from "./dom";
import { Figure, type Spike } from "./figure";
import { curvesLane, heatLane, waveLane } from "./lanes";
import { listen, type Listening } from "./microphone";
import type { Model, Reading, Sound } from "./model";
import { decision, hasThreshold, type Decision } from "./rule";
import { Slider } from "./slider";
import { hear, joined, LogMel, readSound, writeWav } from "./sound";
import { percent, plural, theta as written, whole } from "./text";

const SPOKEN_SECONDS = 1; // of a voice that the network may hear: as long as the recordings it learned from
const MAX_SECONDS = 5; // of a recording that are read and shown

export interface SpeechNumbers {
  recordings: number;
  points: Point[]; // time in milliseconds
}

const WORDS = "Press Speak and say one of these words, or drop a recording here.";
const HINTS: Record<State, string> = {
  idle: WORDS,
  loading: "",
  waiting: "Say one of these words now.",
  hearing: "",
  done: "",
};

type State = "idle" | "loading" | "waiting" | "hearing" | "done";

export class SoundView {
  private model: Model | null = null;
  private reading: Reading | null = null;
  private logMel: LogMel | null = null;
  private samples: Float32Array = new Float32Array(0); // all that is shown
  private ended = false; // there are no more samples
  private frames: Float32Array[] = [];
  private decided: Decision | null = null;
  private theta: number | null = null;
  private state: State = "idle";
  private run = 0; // number of the present recording: whatever belongs to an earlier one stops
  private listening: Listening | null = null;
  private pumping: Promise<void> = Promise.resolve();
  private recording: Float32Array | null = null; // a whole one, to play and to save
  private note = "";
  private readonly figure: Figure;
  private readonly slider: Slider;

  constructor(
    private readonly root: HTMLElement,
    private readonly load: () => Promise<Model>,
    private readonly numbers: Promise<SpeechNumbers> | null = null,
  ) {
    this.figure = new Figure(part<HTMLCanvasElement>(root, "figure"));
    this.slider = new Slider(root, (theta) => this.changeTheta(theta));
    part(root, "speak").addEventListener("click", () => (this.listening ? this.interrupt() : void this.speak()));
    part(root, "replay").addEventListener("click", () => this.recording && void this.play(this.recording));
    part(root, "save").addEventListener("click", () => this.save());
    part(root, "choose").addEventListener("click", () => part(root, "file").click());
    acceptFiles(root, part<HTMLInputElement>(root, "file"), (file) => void this.open(file));
    this.render();
  }

  /** Load the network, once. */
  async ready(): Promise<Model> {
    if (this.model) return this.model;
    const model = await this.load();
    if (this.model) return this.model;
    this.model = model;
    const { about } = model;
    const { sample_rate, hop } = this.sound;
    this.logMel = new LogMel(sample_rate, about.front_end?.log_mel?.n_mels ?? 20, hop);
    this.chips(about.labels);
    if (hasThreshold(about)) {
      const numbers = await this.numbers;
      this.theta = about.rule.threshold!;
      this.slider.offer(
        this.theta,
        numbers?.points.map((point) => point.theta),
      );
    }
    part(this.root, "settings").hidden = this.theta === null;
    this.render();
    void this.curve();
    return model;
  }

  private get sound(): Sound {
    return this.model!.about.sound!;
  }

  private chips(labels: string[]): void {
    const list = part(this.root, "chips");
    if ([...list.children].map((chip) => chip.textContent).join() === labels.join()) return; // those of the first view
    list.replaceChildren(
      ...labels.map((label) => {
        const chip = document.createElement("li");
        chip.textContent = label;
        return chip;
      }),
    );
  }

  // Where sound comes from

  private async begin(state: State): Promise<number> {
    this.stop();
    const run = ++this.run;
    this.samples = new Float32Array(0);
    this.frames = [];
    this.reading = this.decided = this.recording = null;
    this.ended = false;
    this.note = "";
    this.state = this.model ? state : "loading";
    this.fail("");
    this.render();
    const model = await this.ready();
    if (run !== this.run) return -1;
    this.reading = model.begin();
    this.state = state;
    this.render();
    return run;
  }

  private async speak(): Promise<void> {
    try {
      const run = await this.begin("loading");
      if (run < 0) return;
      const most = SPOKEN_SECONDS * this.sound.sample_rate;
      const listening = await listen(
        this.sound.sample_rate,
        (samples) => {
          if (run !== this.run) return;
          this.state = "hearing";
          const room = most - this.samples.length;
          this.feed(samples.subarray(0, room), samples.length >= room);
          if (this.ended) {
            this.recording = this.samples;
            this.stop();
          }
        },
        (loudness) => part(this.root, "meter").style.setProperty("--level", String(loudness)),
      );
      if (run !== this.run) return listening.stop();
      this.listening = listening;
      if (this.state === "loading") this.state = "waiting";
      this.render();
    } catch (error) {
      this.fail(message(error));
    }
  }

  private stop(): void {
    this.listening?.stop();
    this.listening = null;
    if (this.state === "waiting" || this.state === "loading") this.state = "idle";
    this.render();
  }

  /** Stop listening now; what was heard of a word is all there is of it. */
  private interrupt(): void {
    this.stop();
    if (this.state !== "hearing") return;
    this.recording = this.samples;
    this.feed(new Float32Array(0), true);
  }

  private async open(file: File): Promise<void> {
    try {
      const run = await this.begin("loading");
      if (run < 0) return;
      const rate = this.sound.sample_rate;
      let samples: Float32Array;
      try {
        samples = await readSound(await file.arrayBuffer(), rate);
      } catch (error) {
        throw new Error(`${file.name} cannot be read: ${message(error)}.`);
      }
      if (run !== this.run) return;
      const cut = samples.length > MAX_SECONDS * rate;
      await this.play(samples.slice(0, MAX_SECONDS * rate));
      if (cut) this.note = `Only the first ${MAX_SECONDS} seconds of the recording are read here. `;
      this.render();
    } catch (error) {
      this.fail(message(error));
    }
  }

  /** Read a recording as fast as it is heard, and let it be heard. */
  private async play(samples: Float32Array): Promise<void> {
    const run = await this.begin("hearing");
    if (run < 0) return;
    this.recording = samples;
    const rate = this.sound.sample_rate;
    if (!reducedMotion()) {
      const heard = hear(samples, rate);
      const start = performance.now();
      while (run === this.run && !this.decided && this.samples.length < samples.length) {
        await new Promise(requestAnimationFrame);
        const now = Math.floor(((performance.now() - start) * rate) / 1000);
        this.feed(samples.subarray(this.samples.length, Math.max(now, this.samples.length)), false);
        await this.pumping;
      }
      if (run !== this.run) return heard?.stop();
    }
    this.feed(samples.subarray(this.samples.length), true);
    await this.pumping;
  }

  private save(): void {
    if (!this.recording) return;
    const link = document.createElement("a");
    link.href = URL.createObjectURL(writeWav(this.recording, this.sound.sample_rate));
    link.download = "heard.wav";
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  }

  // Reading

  private feed(samples: Float32Array, last: boolean): void {
    this.samples = joined([this.samples, samples]);
    this.ended = last;
    this.pump();
  }

  private changeTheta(theta: number): void {
    this.theta = theta;
    this.decided = null;
    this.pump();
    void this.curve();
  }

  /** Read what has been heard, up to the answer: after it nothing is computed. */
  private pump(): void {
    const run = this.run;
    this.pumping = this.pumping.then(async () => {
      const { reading, model } = this;
      if (!reading || !model) return;
      for (;;) {
        if (run !== this.run) return;
        const { hop, silence_before } = this.sound;
        const hops = this.ended
          ? Math.max(Math.floor(this.samples.length / hop) + 1, model.about.warm_up) + 1
          : Math.floor((silence_before + this.samples.length) / hop);
        this.decided = decision(model.about, reading, this.theta, this.ended && reading.hops >= hops);
        if (this.decided || reading.hops >= hops) break;
        const x = new Float32Array(hop);
        const start = reading.hops * hop - silence_before;
        if (start + hop > 0) {
          x.set(this.samples.slice(Math.max(0, start), start + hop), Math.max(0, -start));
        }
        await reading.read(x);
      }
      if (this.decided && this.ended) this.state = "done";
      this.render();
    });
  }

  // What is shown

  private heard(steps: number): number {
    const { hop, look_ahead, sample_rate } = this.sound;
    const context = (this.model!.about.warm_up - 1) / 2;
    const samples = (steps - 1 + context) * hop + look_ahead;
    return (1000 * (this.ended ? Math.min(samples, this.samples.length) : samples)) / sample_rate;
  }

  private get length(): number {
    const rate = this.model ? this.sound.sample_rate : 16000;
    return this.recording ? (1000 * this.recording.length) / rate : 1000 * SPOKEN_SECONDS;
  }

  private fail(text: string): void {
    if (text) {
      this.listening?.stop();
      this.listening = null;
      this.state = "idle";
      this.render();
    }
    say(part(this.root, "error"), text);
  }

  private render(): void {
    const { root, state, decided, model, reading } = this;
    const speak = part(root, "speak");
    speak.setAttribute("aria-pressed", String(this.listening !== null));
    say(part(root, "speak-text"), this.listening ? "Stop" : "Speak");
    root.dataset.state = decided && !this.ended ? "done" : state;
    const none = !this.recording;
    part<HTMLButtonElement>(root, "replay").disabled = none;
    part<HTMLButtonElement>(root, "save").disabled = none;
    const steps = decided?.steps ?? reading?.steps ?? 0;
    this.frameUpTo(reading?.steps ?? 0);
    const values = reading?.probabilities[steps - 1];
    [...part(root, "chips").children].forEach((chip, label) => {
      (chip as HTMLElement).style.setProperty("--p", String(values?.[label] ?? 0));
      chip.classList.toggle("answer", decided?.label === label);
    });
    this.answer(steps);
    const rate = model ? this.sound.sample_rate : 16000;
    const at = (step: number) => (model ? this.heard(step) : 0);
    const known = values ? values.indexOf(Math.max(...values)) : null;
    const spike: Spike[] = decided
      ? [{ at: at(decided.steps), text: `${whole(at(decided.steps))} ms`, veil: this.veil(decided) }]
      : [];
    this.figure.show(
      {
        length: this.length,
        unit: "ms",
        ticks: this.length > 2500 ? 1000 : this.length > 400 ? 200 : 50,
        lanes: [
          waveLane("the sound", this.samples, rate),
          heatLane("what it reads: the loudness of each pitch", this.frames, model ? (1000 * this.sound.hop) / rate : 0),
          curvesLane("how sure it is of each word", 130, {
            names: model?.about.labels ?? [],
            values: reading?.probabilities ?? [],
            at,
            leader: decided?.label ?? known,
            theta: model ? this.theta : 0.98,
            dot: decided?.fired ? decided.steps : null,
          }),
        ],
        spikes: decided?.fired ? spike : [],
        cursor: decided || !this.samples.length ? null : (1000 * this.samples.length) / rate,
      },
      decided
        ? (part(root, "status").textContent ?? "")
        : "The sound, its log-mel picture and the probability of each word.",
    );
  }

  /** Log-mel frames are a part of the network: only those it has read are there. */
  private frameUpTo(steps: number): void {
    const context = this.model ? this.model.about.warm_up - 1 : 0;
    while (this.logMel && steps && this.frames.length < steps + context)
      this.frames.push(this.logMel.frame(this.samples, this.frames.length));
  }

  private veil(decided: Decision): string {
    return (this.reading?.steps ?? 0) > decided.steps ? "after the answer" : "never computed";
  }

  private answer(steps: number): void {
    const { root, state, decided, model } = this;
    const box = part(root, "answer");
    const titles: Record<State, string> = {
      idle: "Say a word",
      loading: "Loading …",
      waiting: "I am listening",
      hearing: "…",
      done: "",
    };
    say(part(root, "word"), decided && model ? model.about.labels[decided.label] : titles[state]);
    const clock = !model || !steps ? 0 : this.heard(steps);
    say(part(root, "clock"), whole(clock));
    box.classList.toggle("decided", decided !== null);
    if (!decided || !model) {
      delete box.dataset.label;
      say(part(root, "saved"), "–");
      say(part(root, "saved-detail"), "computation saved");
      say(part(root, "status"), HINTS[state]);
      return;
    }
    const total =
      Math.floor((this.length * this.sound.sample_rate) / 1000 / this.sound.hop) + 1 - (model.about.warm_up - 1);
    const share = 1 - decided.steps / total;
    const word = model.about.labels[decided.label];
    Object.assign(box.dataset, {
      label: word,
      steps: decided.steps,
      milliseconds: clock,
      fired: decided.fired,
      probability: decided.probability,
    });
    say(part(root, "saved"), percent(share));
    say(part(root, "saved-detail"), `saved: ${decided.steps} of ${plural(total, "step")}`);
    const extra = (this.reading?.steps ?? 0) - decided.steps;
    const saved =
      extra > 0
        ? `${percent(share)} of the computation comes after it; ${plural(extra, "step")} of that were computed here only because the slider was moved.`
        : `${percent(share)} of the computation was saved.`;
    const sure = decided.fired
      ? `“${word}” after ${whole(clock)} ms, ${percent(decided.probability, 1)} sure. ${saved}`
      : `Never sure enough. At the end it takes “${word}” (${percent(decided.probability)}).`;
    say(part(root, "status"), `${this.note}${sure}`);
  }

  private async curve(): Promise<void> {
    const numbers = await this.numbers;
    const box = part(this.root, "curve-box");
    box.hidden = !numbers;
    if (!numbers) return;
    const current = numbers.points.find((point) => point.theta === this.theta) ?? null;
    const text = current
      ? `At θ = ${written(current.theta)}: ${percent(current.accuracy, 1)} right after ${whole(current.time)} ms on average.`
      : "";
    say(
      part(this.root, "curve-text"),
      `${text} Measured on ${numbers.recordings.toLocaleString("en")} test recordings.`,
    );
    const lines = [{ name: "", kind: "ours" as const, points: numbers.points }];
    drawCurve(
      part<SVGSVGElement>(this.root, "curve"),
      lines,
      current,
      "ms heard",
      `Accuracy against time heard. ${text}`,
    );
  }
}
