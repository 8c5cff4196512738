// The lanes of pictures over time: waveforms, frames, probabilities, values.
import type { Lane } from "./figure";

/** A waveform; the axis is in milliseconds. */
export function waveLane(title: string, samples: Float32Array, rate: number): Lane {
  return {
    title,
    height: 64,
    draw: (paint, box) => {
      const { context } = paint;
      const middle = box.top + box.height / 2;
      paint.straight(box.left, middle, box.left + box.width, middle, "grid", 1);
      if (!samples.length) return;
      const loudest = samples.reduce((most, value) => Math.max(most, Math.abs(value)), 0.05);
      context.fillStyle = paint.color("data");
      const perPixel = rate / 1000 / (paint.x(1) - paint.x(0));
      for (let pixel = 0; pixel * perPixel < samples.length && pixel < box.width; pixel++) {
        const part = samples.subarray(Math.floor(pixel * perPixel), Math.ceil((pixel + 1) * perPixel));
        const most = part.reduce((found, value) => Math.max(found, Math.abs(value)), 0);
        const half = Math.max(0.6, (most / loudest) * (box.height / 2));
        context.fillRect(box.left + pixel, middle - half, 1, 2 * half);
      }
    },
  };
}

const channels = (color: string): number[] => [1, 3, 5].map((at) => parseInt(color.slice(at, at + 2), 16)); // "#rrggbb"

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
          paint.straight(box.left, y(limit), box.left + box.width, y(limit), "spike", 1, [4, 4]);
      const line = (label: number) =>
        curves.values.map((values, place): [number, number] => [paint.x(curves.at(place + 1)), y(values[label])]);
      curves.names.forEach((_, label) => {
        if (label !== curves.leader) paint.line(line(label), "faint", 1.2);
      });
      if (curves.leader !== null) paint.line(line(curves.leader), "data", 2.4);
    },
    overlay: (paint, box) => {
      const { context } = paint;
      const { leader } = curves;
      if (leader === null || !curves.values.length) return;
      const at = curves.dot === null ? curves.values.length - 1 : curves.dot - 1;
      const [x, top] = [paint.x(curves.at(at + 1)), box.top + box.height * (1 - curves.values[at][leader])];
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

/** One value a step, as a bar from the middle. */
export function barsLane(title: string, values: number[], known: number, most: number): Lane {
  return {
    title,
    height: 90,
    draw: (paint, box) => {
      const { context } = paint;
      const middle = box.top + box.height / 2;
      paint.straight(box.left, middle, box.left + box.width, middle, "muted", 1);
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
