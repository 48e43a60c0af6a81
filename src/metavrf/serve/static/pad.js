// The drawing pad: pen, mouse, touch and keyboard to strokes of points in 0..1.

import { trace } from "./raster.js";

const WIDTH = 0.028; // of a stroke, as shown
const CLOSEST = 0.004; // points nearer to the last one are left out
const STEP = 0.04; // of the arrow keys
const FINE_STEP = 0.01;
const DIRECTIONS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };

const within = (value) => Math.round(1000 * Math.min(1, Math.max(0, value))) / 1000;

export class Pad {
  /** `strokes()` gives what is drawn. `begin(strokes)`, `extend(strokes)`, `end()` tell what the pen does. */
  constructor(canvas, { strokes, begin, extend, end }) {
    Object.assign(this, { canvas, strokes, begin, extend, end });
    this.pen = null; // the pointer that draws
    this.cursor = [0.5, 0.5]; // of the keyboard
    this.down = false; // the keyboard's pen
    this.byKeys = false;
    canvas.addEventListener("pointerdown", (event) => this.press(event));
    canvas.addEventListener("pointermove", (event) => this.drag(event));
    for (const name of ["pointerup", "pointercancel", "lostpointercapture"]) {
      canvas.addEventListener(name, (event) => this.release(event));
    }
    canvas.addEventListener("keydown", (event) => this.key(event));
    canvas.addEventListener("focus", () => {
      this.byKeys = canvas.matches(":focus-visible");
      this.draw();
    });
    canvas.addEventListener("blur", () => {
      this.byKeys = false;
      this.lift();
      this.draw();
    });
    new ResizeObserver(() => this.draw()).observe(canvas);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw());
  }

  at(event) {
    const box = this.canvas.getBoundingClientRect();
    return [within((event.clientX - box.left) / box.width), within((event.clientY - box.top) / box.height)];
  }

  press(event) {
    if (this.pen !== null || event.button !== 0) return;
    this.pen = event.pointerId;
    this.canvas.setPointerCapture(this.pen);
    this.canvas.focus({ preventScroll: true });
    this.byKeys = false;
    this.lift();
    this.begin([...this.strokes(), [this.at(event)]]);
    event.preventDefault();
  }

  drag(event) {
    if (event.pointerId !== this.pen) return;
    const events = event.getCoalescedEvents?.() ?? [];
    this.append((events.length ? events : [event]).map((one) => this.at(one)));
  }

  release(event) {
    if (event.pointerId !== this.pen) return;
    this.pen = null;
    this.end();
  }

  append(points) {
    const strokes = this.strokes();
    if (!strokes.length) return; // cleared while the pen was down
    const last = [...strokes.at(-1)];
    for (const point of points) {
      if (Math.hypot(point[0] - last.at(-1)[0], point[1] - last.at(-1)[1]) >= CLOSEST) last.push(point);
    }
    if (last.length > strokes.at(-1).length) this.extend([...strokes.slice(0, -1), last]);
  }

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const direction = DIRECTIONS[event.key];
    if (direction) {
      const step = event.shiftKey ? FINE_STEP : STEP;
      this.cursor = this.cursor.map((value, axis) => within(value + step * direction[axis]));
      if (this.down) this.append([this.cursor]);
    } else if (event.key === " ") {
      if (this.down) this.lift();
      else {
        this.down = true;
        this.begin([...this.strokes(), [this.cursor]]);
      }
    } else if (event.key === "Escape" && this.down) this.lift();
    else return;
    event.preventDefault();
    this.byKeys = true;
    this.draw();
  }

  lift() {
    if (!this.down) return;
    this.down = false;
    this.end();
  }

  draw() {
    const side = Math.round(this.canvas.clientWidth * devicePixelRatio);
    if (!side) return;
    if (this.canvas.width !== side) this.canvas.width = this.canvas.height = side;
    const context = this.canvas.getContext("2d");
    const style = getComputedStyle(this.canvas);
    context.setTransform(1, 0, 0, 1, 0, 0);
    context.clearRect(0, 0, side, side);
    context.setTransform(side, 0, 0, side, 0, 0);
    context.lineWidth = WIDTH;
    context.strokeStyle = style.color;
    trace(context, this.strokes());
    if (!this.byKeys) return;
    const [x, y] = this.cursor;
    context.strokeStyle = context.fillStyle = style.getPropertyValue("--orange");
    context.lineWidth = 0.006;
    context.beginPath();
    context.arc(x, y, 0.022, 0, 7);
    if (this.down) context.fill();
    else context.stroke();
  }
}
