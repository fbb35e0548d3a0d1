// Plays a recorded terminal: each line appears at the second of its data-at. Without this file all lines are shown.
document.querySelectorAll(".recording").forEach((box) => {
  const lines = box.querySelectorAll("[data-at]");
  let timers = [];
  box.querySelector("button").addEventListener("click", () => {
    timers.forEach(clearTimeout);
    lines.forEach((line) => (line.style.visibility = "hidden"));
    timers = [...lines].map((line) =>
      setTimeout(() => (line.style.visibility = ""), 1000 * Number(line.dataset.at)),
    );
  });
});
