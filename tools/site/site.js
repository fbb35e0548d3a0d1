// What the pages do in a browser; without this file everything is shown.

// A recorded terminal: each line appears at the second of its data-at.
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

// The copy button of a terminal takes the commands, without prompts and output: the theme prefers data-copy.
document.querySelectorAll("pre code").forEach((code) => {
  const commands = code.textContent.split("\n").filter((line) => line.startsWith("$ "));
  if (commands.length) code.dataset.copy = commands.map((line) => line.slice(2)).join("\n");
});
