// A slider through the training steps that moves the whole page.

const PLAY = 700; // milliseconds for each step
let playTimer = null;

function drawSlider() {
  if (!steps.length) return;
  const range = element("input", { type: "range", id: "step", min: "0", max: END, step: "1", value: END, "aria-label": live.before ? "Before or after" : "Training step" });
  range.addEventListener("input", () => {
    update({ time: Number(range.value) }); // before the rest is drawn again
    stopPlaying();
  });
  const play = button("", () => (playTimer ? stopPlaying() : playFrom(0)), { id: "play" });
  show("slider", live.before ? null : play, range, element("output", { for: "step", id: "step-name" }));
  redrawOn("time playing", () => {
    range.value = state.time; // a link may have changed it
    range.setAttribute("aria-valuetext", stepName());
    show("step-name", stepName());
    play.textContent = state.playing ? "❚❚ stop" : "▶ play training";
  });
}

function stepName() {
  if (live.before) return state.time === END ? `after: ${live.source}` : `before: ${live.before}`;
  const rounded = live.earlier.type === "int8" ? ", rounded" : "";
  return `step ${liveStep().toLocaleString("en")}${state.time === END ? ", trained" : rounded}`;
}

function playFrom(time) {
  playTimer = time < END ? setTimeout(playFrom, PLAY, time + 1) : null;
  update({ time, playing: time < END });
}

function stopPlaying() {
  clearTimeout(playTimer);
  playTimer = null;
  update({ playing: false });
}
