// Runs in the audio thread: sends the samples of the microphone, channels averaged, in blocks of about 10 ms.
const BLOCK = 512;

class Recorder extends AudioWorkletProcessor {
  constructor() {
    super();
    this.block = new Float32Array(BLOCK);
    this.filled = 0;
  }

  process([channels]) {
    const count = channels.length;
    for (let at = 0; count && at < channels[0].length; at++) {
      let sum = 0;
      for (let channel = 0; channel < count; channel++) sum += channels[channel][at];
      this.block[this.filled++] = sum / count;
      if (this.filled === BLOCK) {
        this.port.postMessage(this.block.slice());
        this.filled = 0;
      }
    }
    return true;
  }
}

registerProcessor("recorder", Recorder);
