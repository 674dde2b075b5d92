// A slider through the training steps that moves the whole page.

const PLAY = 700; // milliseconds for each step
let playTimer = null;

function drawSlider() {
  if (!steps.length) return;
  const range = element("input", { type: "range", id: "step", max: END, value: END, "aria-label": live.before ? "Before or after" : "Training step" });
  range.addEventListener("input", () => stopPlaying(Number(range.value)));
  const play = button("", () => (state.playing ? stopPlaying() : playFrom(0)), { id: "play" });
  show("slider", !live.before && play, range, element("output", { for: "step", id: "step-name" }));
  views.push(() => {
    range.value = state.time; // a link may have changed it
    range.setAttribute("aria-valuetext", stepName());
    show("step-name", stepName());
    play.textContent = state.playing ? "❚❚ stop" : "▶ play training";
  });
}

function stepName() {
  if (live.before) return state.time === END ? `after: ${live.source}` : `before: ${live.before}`;
  if (state.here !== null) return `step ${state.here}, trained in this page`;
  return `step ${liveStep().toLocaleString("en")}${state.time === END ? ", trained" : ""}`;
}

function playFrom(time) {
  if (time < END) playTimer = setTimeout(playFrom, PLAY, time + 1);
  update({ time, playing: time < END });
}

function stopPlaying(time = state.time) {
  clearTimeout(playTimer);
  update({ time, playing: false });
}
