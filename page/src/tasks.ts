// The paper's tasks: generated sequences, drawn as in rankcode.tasks, and how each task is shown.
import { SIDE } from "./digits";
import type { Box, Lane, Painter } from "./figure";
import { barsLane } from "./lanes";

export interface Sequence {
  values: number[];
  label: number;
  remark: string; // what the network is not told
}

/** A number that float32 and a table with four digits hold alike. */
const rounded = (value: number): number => Math.round(value * 1e4) / 1e4;

function normal(): number {
  return Math.sqrt(-2 * Math.log(1 - Math.random())) * Math.cos(2 * Math.PI * Math.random());
}

export const RUN = 5;

export function longestRun(values: number[]): number {
  let [longest, run] = [0, 0];
  values.forEach((value, place) => {
    run = place && value === values[place - 1] ? run + 1 : 1;
    longest = Math.max(longest, run);
  });
  return longest;
}

/** Coin flips; positive: there is a run of five equal ones. */
export function spotting(values?: number[]): Sequence {
  const flips = values ?? Array.from({ length: 25 }, () => Number(Math.random() < 0.5));
  const longest = longestRun(flips);
  return { values: flips, label: Number(longest >= RUN), remark: `the longest run is ${longest}` };
}

/** Noise around +0.05 or −0.05, of a standard deviation that differs from sequence to sequence. */
export function twoSequence(): Sequence {
  const label = Number(Math.random() < 0.5);
  const deviation = 0.05 + 0.2 * Math.random();
  const centre = 0.05 * (2 * label - 1);
  const values = Array.from({ length: 40 }, () => rounded(centre + deviation * normal()));
  return { values, label, remark: `the noise has a standard deviation of ${deviation.toFixed(2)}` };
}

export interface Task {
  steps: number;
  ranked: string; // names of the networks
  conventional: string;
  pause: number; // milliseconds from step to step
  about: string;
  conventionalIs: string;
  draw?: () => Sequence;
  lane?: (values: number[], known: number) => Lane;
  names: [string, string] | null;
}

const coins = (values: number[], known: number): Lane => ({
  title: "coin flips",
  height: 44,
  draw: (paint, box) => {
    const radius = Math.min(11, (paint.x(1) - paint.x(0)) / 2 - 1);
    values.slice(0, known).forEach((value, place) => coin(paint, box, place, value, radius));
  },
});

function coin(paint: Painter, box: Box, place: number, value: number, radius: number): void {
  const { context } = paint;
  context.beginPath();
  context.arc(paint.x(place + 0.5), box.top + box.height / 2 + (value ? -8 : 8), radius, 0, 2 * Math.PI);
  context.fillStyle = paint.color(value ? "data" : "lane");
  context.strokeStyle = paint.color("data");
  context.lineWidth = 1.6;
  context.fill();
  context.stroke();
}

/** The image as it appears: one picture for each step. */
export const appearing = (image: Uint8Array, times: number[], known: number): Lane => ({
  title: "the digit appears, darkest ink first",
  height: 64,
  draw: (paint, box) => {
    const { context } = paint;
    const side = Math.min(box.height, paint.x(1) - paint.x(0) - 3);
    for (let step = 1; step <= known; step++) {
      const left = (paint.x(step - 1) + paint.x(step)) / 2 - side / 2;
      const top = box.top + (box.height - side) / 2;
      context.fillStyle = paint.color("lane");
      context.fillRect(left, top, side, side);
      context.fillStyle = paint.color("data");
      times.forEach((time, place) => {
        if (time > step || image[place] === 0) return;
        const pixel = side / SIDE;
        context.fillRect(
          left + (place % SIDE) * pixel,
          top + Math.floor(place / SIDE) * pixel,
          pixel + 0.3,
          pixel + 0.3,
        );
      });
    }
  },
});

export const TASKS: Record<string, Task> = {
  spotting: {
    steps: 25,
    ranked: "spotting-rank-coded",
    conventional: "spotting-conventional",
    pause: 110,
    about:
      "From the paper: 25 coin flips, one at a time. Is there a run of five equal ones? Once it has come, nothing can change the answer, and a network that has learned when to answer stops there.",
    conventionalIs:
      "The conventional network was trained on its answer at the end, and is read to the end. The rank-coded one learned only from its spikes: with a much larger θ it comes to steps that it does not know.",
    draw: () => spotting(),
    lane: coins,
    names: ["no run of five", "a run of five"],
  },
  "two-sequence": {
    steps: 40,
    ranked: "two-sequence-rank-coded",
    conventional: "two-sequence-conventional",
    pause: 90,
    about:
      "From the paper: 40 noisy values whose mean is a little above or a little below zero. With little noise a few values tell; with much noise it takes nearly all of them. The network is not told how noisy the sequence is.",
    conventionalIs: "The conventional network was trained on its answer at the end, and is read to the end.",
    draw: twoSequence,
    lane: (values, known) => barsLane("values", values, known, 0.4),
    names: ["below zero", "above zero"],
  },
  digits: {
    steps: 10,
    ranked: "digits",
    conventional: "digits-conventional",
    pause: 260,
    about:
      "From the paper: a handwritten digit appears over ten steps, its darkest ink first. Draw one with a finger or the mouse, or take one of ours. The network has seen only digits of the MNIST training set.",
    conventionalIs:
      "Both networks have the same layers. The conventional one was trained on its answer at the end, for 10 epochs, and is read to the end; the rank-coded one until its spike, for 25.",
    names: null,
  },
};
