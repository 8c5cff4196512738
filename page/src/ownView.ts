// A network of the user's own: an exported file, or the run that `rankcode serve RUN` offers.
import { acceptFiles, copyOf, message, part, say } from "./dom";
import { Model, size, type About } from "./model";
import { NumbersView } from "./numbersView";
import { SoundView } from "./soundView";
import { plural, theta } from "./text";

const MAX_BYTES = 300e6;

export interface Offer {
  name: string;
  file: string;
}

function reads(about: About): string {
  if (about.sound && about.x.raw) return `sound at ${about.sound.sample_rate.toLocaleString("en")} Hz`;
  const width = size(about.x.shape);
  return about.x.raw ? `series of ${plural(width, "value")} a step` : `${plural(width, "number")} a step`;
}

function answers(about: About): string {
  const { kind, threshold } = about.rule;
  if (kind === "Threshold") return `as soon as a class has a probability of ${theta(threshold!)}`;
  return `when its rule says so (${kind})`;
}

export class OwnView {
  constructor(
    private readonly root: HTMLElement,
    private readonly soundView: () => HTMLElement,
  ) {
    part(root, "choose-model").addEventListener("click", () => part(root, "model-file").click());
    acceptFiles(part(root, "drop"), part<HTMLInputElement>(root, "model-file"), (file) => {
      void this.open(file.name, async () => {
        if (file.size > MAX_BYTES) throw new Error("It is larger than 300 MB.");
        return Model.of(new Uint8Array(await file.arrayBuffer()));
      });
    });
  }

  /** Show what the command line offers. */
  offer({ name, file }: Offer): void {
    void this.open(name, () => Model.fetch(file));
  }

  private async open(name: string, load: () => Promise<Model>): Promise<void> {
    const { root } = this;
    say(part(root, "model-error"), "");
    say(part(root, "model-status"), `Loading ${name} …`);
    try {
      const model = await load();
      this.describe(name, model);
      const isSound = Boolean(model.about.sound && model.about.x.raw);
      const view = isSound ? this.soundView() : copyOf("numbers-view");
      part(root, "own").replaceChildren(view);
      if (isSound) await new SoundView(view, async () => model).ready();
      else new NumbersView(view, model);
      say(part(root, "model-status"), `${name} is open.`);
    } catch (error) {
      say(part(root, "model-status"), "");
      say(part(root, "model-error"), `${name}: ${message(error)}`);
    }
  }

  private describe(name: string, model: Model): void {
    const { about } = model;
    const facts: Record<string, string> = {
      name,
      reads: reads(about),
      answers: answers(about),
      labels:
        about.labels.length > 40
          ? plural(about.labels.length, "class").replace("classs", "classes")
          : about.labels.join(", "),
      size: `${(model.bytes / 1e6).toFixed(2)} MB`,
    };
    for (const [key, text] of Object.entries(facts)) say(part(this.root, `fact-${key}`), text);
    part(this.root, "facts").hidden = false;
  }
}
