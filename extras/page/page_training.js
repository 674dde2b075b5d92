// A slider through the training steps that moves the whole page.

const PLAY = 700; // milliseconds for each step
let playTimer = null;

function drawSlider() {
  if (!steps.length && !live?.training) return;
  const range = element("input", { type: "range", id: "step", "aria-label": live.before ? "Before or after" : "Training step" });
  range.addEventListener("input", () => stopPlaying(range.value === range.max ? END : Number(range.value)));
  const play = button("", () => (state.playing ? stopPlaying() : playFrom(0)), "play", { id: "play" });
  show("slider", !live.before && play, range, element("output", { for: "step", id: "step-name" }));
  views.push(() => {
    range.max = steps.length;
    range.value = Math.min(state.time, steps.length); // a link may have changed it
    range.setAttribute("aria-valuetext", stepName());
    show("step-name", stepName());
    show("model-name", state.here === null ? `${content.run.name}, ${content.run.step}` : stepName());
    play.textContent = state.playing ? "❚❚ stop" : "▶ play training";
  });
}

function stepName() {
  if (live.before) return state.time === END ? `after: ${live.source}` : `before: ${live.before}`;
  if (state.here !== null) return `step ${state.time === END ? state.here : liveStep()}, trained in this page`;
  return `step ${liveStep().toLocaleString("en")}${state.time === END ? ", trained" : ""}`;
}

function playFrom(time) {
  const isLast = time >= steps.length;
  if (!isLast) playTimer = setTimeout(playFrom, PLAY, time + 1);
  update({ time: isLast ? END : time, playing: !isLast });
}

function stopPlaying(time = state.time) {
  clearTimeout(playTimer);
  update({ time, playing: false });
}
